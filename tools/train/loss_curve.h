// The loss curve as an SVG drawing.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace deepspeed::train {

struct Curve {
  std::string name;
  std::string colour;                             // CSS
  std::vector<std::pair<double, double>> points;  // step, loss
};

std::string draw_curves(const std::string& title, const std::vector<Curve>& curves);

}  // namespace deepspeed::train
