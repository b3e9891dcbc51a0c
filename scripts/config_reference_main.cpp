// Prints docs/config.md; built and run by make_docs.py.
#include <iostream>

#include "config/reference.h"

int main() { std::cout << deepspeed::config::config_reference(); }
