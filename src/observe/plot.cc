#include "observe/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace quadrille::observe {
namespace {

constexpr double kPanelWidth = 460, kPanelHeight = 280, kLeft = 58, kRight = 16, kTop = 40,
                 kBottom = 42;
// Okabe and Ito's palette: told apart by colour-blind readers too.
constexpr std::array<const char*, 6> kColors = {"#0072B2", "#D55E00", "#009E73",
                                                "#CC79A7", "#E69F00", "#56B4E9"};

struct Range {
  double low = INFINITY;
  double high = -INFINITY;
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
  void widen(double share) {
    const double pad =
        high > low ? (high - low) * share : std::max(1e-12, std::abs(high) * 0.1 + 0.1);
    low -= pad;
    high += pad;
  }
};

// Steps of 1, 2 or 5 times a power of ten that give about `count` ticks.
std::vector<double> ticks(const Range& range, int count) {
  const double raw = (range.high - range.low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double lead = raw / power;
  const double step = power * (lead < 1.5 ? 1 : lead < 3.5 ? 2 : lead < 7.5 ? 5 : 10);
  std::vector<double> out;
  for (double t = std::ceil(range.low / step) * step; t <= range.high + step * 1e-9; t += step) {
    out.push_back(std::abs(t) < step * 1e-9 ? 0 : t);
  }
  return out;
}

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  }
  return out;
}

std::string text_at(double x, double y, const std::string& anchor, int size,
                    const std::string& text) {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\">{}</text>\n", x, y,
      anchor, size, escape(text));
}

std::string axes(const Panel& panel, const Range& xs, const Range& ys, auto&& px, auto&& py) {
  std::string out;
  for (const double t : ticks(ys, 5)) {
    out +=
        fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#e3e3e3\"/>\n",
                    kLeft, kPanelWidth - kRight, py(t), py(t));
    out += text_at(kLeft - 6, py(t) + 4, "end", 11, fmt::format("{:.4g}", t));
  }
  for (const double t : ticks(xs, 6)) {
    out += text_at(px(t), kPanelHeight - kBottom + 16, "middle", 11, fmt::format("{:.4g}", t));
  }
  out += fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#888\"/>\n", kLeft,
      kTop, kPanelWidth - kLeft - kRight, kPanelHeight - kTop - kBottom);
  out += text_at(kLeft, 18, "start", 13, panel.title);
  out +=
      text_at((kLeft + kPanelWidth - kRight) / 2, kPanelHeight - 10, "middle", 11, panel.x_label);
  return out;
}

std::string panel_svg(const Panel& panel) {
  Range xs;
  Range ys;
  for (const Series& series : panel.series) {
    for (size_t i = 0; i < std::min(series.x.size(), series.y.size()); ++i) {
      if (!std::isfinite(series.y[i])) continue;
      xs.add(series.x[i]);
      ys.add(series.y[i]);
    }
  }
  if (xs.empty()) return text_at(kLeft, 18, "start", 13, panel.title + " (no data)");
  xs.widen(xs.high > xs.low ? 0 : 1);
  ys.widen(0.06);
  const auto px = [&](double x) {
    return kLeft + (x - xs.low) / (xs.high - xs.low) * (kPanelWidth - kLeft - kRight);
  };
  const auto py = [&](double y) {
    return kPanelHeight - kBottom -
           (y - ys.low) / (ys.high - ys.low) * (kPanelHeight - kTop - kBottom);
  };
  std::string out = axes(panel, xs, ys, px, py);
  double legend = kLeft;
  for (size_t s = 0; s < panel.series.size(); ++s) {
    const Series& series = panel.series[s];
    const char* color = kColors[s % kColors.size()];
    std::string points;
    for (size_t i = 0; i < std::min(series.x.size(), series.y.size()); ++i) {
      if (!std::isfinite(series.y[i])) continue;
      points += fmt::format("{:.1f},{:.1f} ", px(series.x[i]), py(series.y[i]));
      if (series.markers) {
        out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n",
                           px(series.x[i]), py(series.y[i]), color);
      }
    }
    out +=
        fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"/>\n",
                    points, color);
    out += fmt::format("<rect x=\"{:.1f}\" y=\"26\" width=\"10\" height=\"4\" fill=\"{}\"/>\n",
                       legend, color);
    out += text_at(legend + 14, 32, "start", 11, series.name);
    legend += 26 + 6.2 * static_cast<double>(series.name.size());
  }
  return out;
}

}  // namespace

std::string curves_svg(const std::string& title, const std::vector<Panel>& panels, int columns) {
  const int count = static_cast<int>(panels.size());
  const int rows = (count + columns - 1) / columns;
  const double width = kPanelWidth * std::min(columns, std::max(count, 1));
  const double height = 34 + kPanelHeight * rows;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" "
      "font-family=\"Helvetica,Arial,sans-serif\" fill=\"#222\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      width, height);
  out += text_at(width / 2, 22, "middle", 16, title);
  for (int i = 0; i < count; ++i) {
    out +=
        fmt::format("<g transform=\"translate({},{})\">\n{}</g>\n", kPanelWidth * (i % columns),
                    34 + kPanelHeight * (i / columns), panel_svg(panels[static_cast<size_t>(i)]));
  }
  return out + "</svg>\n";
}

std::string run_curves_svg(const std::filesystem::path& metrics_jsonl, const std::string& title) {
  std::vector<std::pair<double, nlohmann::json>> lines;
  if (!std::filesystem::exists(metrics_jsonl)) return "";
  for_each_line(metrics_jsonl, [&](std::string_view text, int64_t) {
    auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("step"))
      lines.emplace_back(json["step"].get<double>(), std::move(json));
  });
  const auto series = [&](const std::string& metric, const std::string& name,
                          bool markers = false) {
    Series out{name, {}, {}, markers};
    for (const auto& [step, json] : lines) {
      const auto it = json.find(metric);
      if (it == json.end() || !it->is_number()) continue;
      out.x.push_back(step);
      out.y.push_back(it->get<double>());
    }
    return out;
  };
  std::vector<Panel> panels;
  const auto add = [&](const std::string& panel_title, std::vector<Series> candidates) {
    std::erase_if(candidates, [](const Series& s) { return s.x.empty(); });
    if (!candidates.empty()) panels.push_back({panel_title, "step", std::move(candidates)});
  };
  add("reward", {series("reward/mean", "mean"),
                 series("reward/zero_std_ratio", "groups with equal rewards")});
  add("held-out accuracy",
      {series("eval/accuracy", "accuracy", true), series("eval/reward", "reward", true)});
  add("loss", {series("policy/loss", "loss")});
  add("entropy", {series("policy/entropy", "policy")});
  add("response length", {series("response/length_mean_tokens", "mean tokens")});
  add("gradient norm", {series("optim/grad_norm", "before clipping")});
  add("experts", {series("moe/max_vio", "worst layer's max_vio")});
  add("seconds a step",
      {series("time/rollout_seconds", "rollout"), series("time/reward_seconds", "reward"),
       series("time/policy_update_seconds", "update")});
  return panels.empty() ? "" : curves_svg(title, panels);
}

}  // namespace quadrille::observe
