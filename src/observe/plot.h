// Curves as a stand-alone SVG file: a grid of panels, each with axes, a legend and one line a
// series.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace quadrille::observe {

struct Series {
  std::string name;
  std::vector<double> x;
  std::vector<double> y;  // Points that are not finite are left out.
  bool markers = false;   // Dots on the points: for sparse series such as evaluations.
};

struct Panel {
  std::string title;
  std::string x_label;
  std::vector<Series> series;
};

// Panels fill rows of `columns`. The same input gives the same bytes.
std::string curves_svg(const std::string& title, const std::vector<Panel>& panels, int columns = 2);

// The curves people look at first, from a run's metrics.jsonl: reward or loss, evaluation, length,
// entropy, gradient norm, time per phase; panels without data are left out. Empty text if the file
// has none.
std::string run_curves_svg(const std::filesystem::path& metrics_jsonl, const std::string& title);

}  // namespace quadrille::observe
