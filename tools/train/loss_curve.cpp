#include "train/loss_curve.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

namespace deepspeed::train {
namespace {

constexpr double kWidth = 720, kHeight = 400, kLeft = 64, kRight = 16, kTop = 40, kBottom = 44;

// A step of 1, 2 or 5 times a power of ten that cuts `span` into about `parts`.
double nice_step(double span, int parts) {
  const double raw = std::max(span, 1e-9) / parts;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10 * power;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", std::abs(value) < 1e-12 ? 0.0 : value);
  return text;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  }
  return out;
}

}  // namespace

std::string draw_curves(const std::string& title, const std::vector<Curve>& curves) {
  double x0 = 0, x1 = 1, y0 = INFINITY, y1 = -INFINITY;
  for (const auto& curve : curves) {
    for (const auto& [x, y] : curve.points) {
      if (!std::isfinite(y)) continue;
      x1 = std::max(x1, x);
      y0 = std::min(y0, y);
      y1 = std::max(y1, y);
    }
  }
  if (!(y0 <= y1)) y0 = 0, y1 = 1;
  const double step_y = nice_step(y1 - y0, 6), step_x = nice_step(x1 - x0, 8);
  y0 = std::floor(y0 / step_y) * step_y;
  y1 = std::max(std::ceil(y1 / step_y) * step_y, y0 + step_y);
  const auto px = [&](double x) { return kLeft + (x - x0) / (x1 - x0) * (kWidth - kLeft - kRight); };
  const auto py = [&](double y) { return kHeight - kBottom - (y - y0) / (y1 - y0) * (kHeight - kTop - kBottom); };

  std::ostringstream svg;
  svg << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << kWidth << ' ' << kHeight
      << "\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"" << kLeft
      << "\" y=\"24\" font-size=\"15\">" << escaped(title) << "</text>\n";
  for (double y = y0; y <= y1 + step_y / 2; y += step_y) {
    svg << "<line x1=\"" << kLeft << "\" x2=\"" << kWidth - kRight << "\" y1=\"" << py(y) << "\" y2=\"" << py(y)
        << "\" stroke=\"#ddd\"/><text x=\"" << kLeft - 6 << "\" y=\"" << py(y) + 4 << "\" text-anchor=\"end\">" << number(y) << "</text>\n";
  }
  for (double x = x0; x <= x1 + 1e-9; x += step_x) {
    svg << "<text x=\"" << px(x) << "\" y=\"" << kHeight - kBottom + 16 << "\" text-anchor=\"middle\">" << number(x) << "</text>\n";
  }
  svg << "<text x=\"" << (kLeft + kWidth - kRight) / 2 << "\" y=\"" << kHeight - 8 << "\" text-anchor=\"middle\">step</text>\n";
  double legend = kWidth - kRight;
  for (const auto& curve : curves) {
    svg << "<polyline fill=\"none\" stroke=\"" << curve.colour << "\" stroke-width=\"1.6\" points=\"";
    for (const auto& [x, y] : curve.points) {
      if (std::isfinite(y)) svg << px(x) << ',' << py(y) << ' ';
    }
    svg << "\"/>\n<text x=\"" << legend << "\" y=\"24\" text-anchor=\"end\" fill=\"" << curve.colour << "\">" << escaped(curve.name)
        << "</text>\n";
    legend -= 12 + 7.0 * static_cast<double>(curve.name.size());
  }
  svg << "</svg>\n";
  return svg.str();
}

}  // namespace deepspeed::train
