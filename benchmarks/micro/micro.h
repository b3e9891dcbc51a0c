// What the micro rows share: one function per row, timing, and lines of results for micro.py.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace micro {

struct Options {
  int repeat = 7;
  int warm = 2;
};

// Milliseconds of each of the repetitions of `body`; `prepare` (may be empty) runs before each one, untimed.
std::vector<double> sample(const Options& options, const std::function<void()>& prepare, const std::function<void()>& body);

// A sum over all elements in which each place counts differently, so that exchanged or missing parts show; the same as in micro_peers.py.
double checksum(const std::vector<at::Tensor>& tensors);

// Prints "MICRO {json}". `check` is a figure that must be equal on both sides of a row up to rounding.
void say(const std::string& row, const std::vector<double>& ms, double check, double extra_mb = 0);

// Rates of this process with its threads: a copy, and a change in place.
void say_copy_rate(const Options& options);

void optimizer(const Options& options);
void small_tensors(const Options& options);
void all_reduce(const Options& options);
void zero_path(const Options& options);
void loss(const Options& options);
void checkpoint(const Options& options);

}  // namespace micro
