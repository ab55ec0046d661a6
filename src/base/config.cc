#include "base/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <toml++/toml.h>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/file.h"

namespace quadrille {
namespace {

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

std::string type_name(const ConfigBinder::Target& target) {
  struct Visitor {
    const char* operator()(bool*) const { return "true or false"; }
    const char* operator()(int64_t*) const { return "an integer"; }
    const char* operator()(double*) const { return "a number"; }
    const char* operator()(std::string*) const { return "a string"; }
    const char* operator()(std::vector<std::string>*) const { return "a list of strings"; }
    const char* operator()(std::vector<int64_t>*) const { return "a list of integers"; }
    const char* operator()(std::vector<double>*) const { return "a list of numbers"; }
  };
  return std::visit(Visitor{}, target);
}

// The shortest text that reads back to the same number; always with a point or an exponent.
std::string number_text(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string quoted(const std::string& text) {
  // A JSON string is a TOML basic string; toml++ itself would write a line break as a multi-line
  // literal, which drops a leading newline when read back.
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string value_text(const ConfigBinder::Target& target) {
  struct Visitor {
    std::string operator()(const bool* v) const { return *v ? "true" : "false"; }
    std::string operator()(const int64_t* v) const { return fmt::format("{}", *v); }
    std::string operator()(const double* v) const { return number_text(*v); }
    std::string operator()(const std::string* v) const { return quoted(*v); }
    std::string operator()(const std::vector<std::string>* v) const {
      std::vector<std::string> items;
      for (const std::string& item : *v) items.push_back(quoted(item));
      return fmt::format("[{}]", fmt::join(items, ", "));
    }
    std::string operator()(const std::vector<int64_t>* v) const {
      return fmt::format("[{}]", fmt::join(*v, ", "));
    }
    std::string operator()(const std::vector<double>* v) const {
      std::vector<std::string> items;
      for (const double item : *v) items.push_back(number_text(item));
      return fmt::format("[{}]", fmt::join(items, ", "));
    }
  };
  return std::visit(Visitor{}, target);
}

template <class T>
bool assign_list(const toml::node& node, std::vector<T>& out) {
  const toml::array* array = node.as_array();
  if (array == nullptr) return false;
  std::vector<T> values;
  for (const toml::node& item : *array) {
    if constexpr (std::is_same_v<T, double>) {
      if (!item.is_number()) return false;
    } else if constexpr (std::is_same_v<T, int64_t>) {
      if (!item.is_integer()) return false;
    } else {
      if (!item.is_string()) return false;
    }
    values.push_back(*item.value<T>());
  }
  out = std::move(values);
  return true;
}

bool assign(const toml::node& node, const ConfigBinder::Target& target) {
  struct Visitor {
    const toml::node& node;
    bool operator()(bool* v) const { return node.is_boolean() && (*v = *node.value<bool>(), true); }
    bool operator()(int64_t* v) const {
      return node.is_integer() && (*v = *node.value<int64_t>(), true);
    }
    bool operator()(double* v) const {
      return node.is_number() && std::isfinite(*node.value<double>()) &&
             (*v = *node.value<double>(), true);
    }
    bool operator()(std::string* v) const {
      return node.is_string() && (*v = *node.value<std::string>(), true);
    }
    bool operator()(std::vector<std::string>* v) const { return assign_list(node, *v); }
    bool operator()(std::vector<int64_t>* v) const { return assign_list(node, *v); }
    bool operator()(std::vector<double>* v) const { return assign_list(node, *v); }
  };
  return std::visit(Visitor{node}, target);
}

toml::table parse(const std::string& text, const std::string& origin) {
  try {
    return toml::parse(text, origin);
  } catch (const toml::parse_error& error) {
    throw UsageError("{}:{}: {}", origin, error.source().begin.line, error.description());
  }
}

}  // namespace

void ConfigBinder::section(std::string name, std::string doc) {
  sections_.push_back({std::move(name), std::move(doc)});
}

void ConfigBinder::add(std::string key, Target target, std::string doc,
                       std::vector<std::string> choices) {
  QD_CHECK(!sections_.empty(), "field {} before any section", key);
  fields_.push_back(
      {sections_.back().name, std::move(key), target, std::move(doc), std::move(choices)});
}

void ConfigBinder::allow_tables(std::string section, std::string key) {
  tables_.push_back(section + "." + key);
}

std::string ConfigBinder::nearest(const std::string& dotted) const {
  std::string best;
  size_t best_distance = SIZE_MAX;
  for (const Field& field : fields_) {
    const std::string name = field.section + "." + field.key;
    const size_t distance = edit_distance(dotted, name);
    if (distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

void ConfigBinder::read_file(const std::filesystem::path& path) {
  read_text(quadrille::read_file(path), path.string());
}

void ConfigBinder::read_text(const std::string& text, const std::string& origin) {
  const toml::table root = parse(text, origin);
  for (const auto& [section_key, section_node] : root) {
    const std::string section(section_key.str());
    const int64_t section_line = section_node.source().begin.line;
    const bool known = std::any_of(sections_.begin(), sections_.end(),
                                   [&](const Section& s) { return s.name == section; });
    const toml::table* table = section_node.as_table();
    if (table == nullptr) {
      throw UsageError("{}:{}: `{}` stands outside a section; did you mean {}?", origin,
                       section_line, section, nearest(section));
    }
    if (!known) {
      std::string best = sections_.empty() ? "" : sections_.front().name;
      for (const Section& s : sections_) {
        if (edit_distance(section, s.name) < edit_distance(section, best)) best = s.name;
      }
      throw UsageError("{}:{}: unknown section [{}]; the nearest is [{}]", origin, section_line,
                       section, best);
    }
    for (const auto& [key_node, node] : *table) {
      const std::string key(key_node.str());
      const std::string dotted = section + "." + key;
      if (std::find(tables_.begin(), tables_.end(), dotted) != tables_.end()) continue;
      const auto field = std::find_if(fields_.begin(), fields_.end(), [&](const Field& f) {
        return f.section == section && f.key == key;
      });
      const int64_t line = node.source().begin.line;
      if (field == fields_.end()) {
        throw UsageError("{}:{}: unknown key {}; the nearest is {}", origin, line, dotted,
                         nearest(dotted));
      }
      if (!assign(node, field->target)) {
        std::ostringstream shown;
        node.visit([&](const auto& n) { shown << n; });
        throw UsageError("{}:{}: {} must be {}, got {}", origin, line, dotted,
                         type_name(field->target), shown.str());
      }
      if (!field->choices.empty()) {
        const std::string& value = *std::get<std::string*>(field->target);
        if (std::find(field->choices.begin(), field->choices.end(), value) ==
            field->choices.end()) {
          throw UsageError("{}:{}: {} must be one of {}, got \"{}\"", origin, line, dotted,
                           fmt::join(field->choices, ", "), value);
        }
      }
      set_keys_.push_back(dotted);
    }
  }
}

void ConfigBinder::set(const std::string& assignment) {
  const size_t equals = assignment.find('=');
  const size_t dot = assignment.find('.');
  if (equals == std::string::npos || dot == std::string::npos || dot > equals) {
    throw UsageError("--set {}: expected section.key=value", assignment);
  }
  auto trim = [](std::string text) {
    const size_t begin = text.find_first_not_of(" \t");
    const size_t end = text.find_last_not_of(" \t");
    return begin == std::string::npos ? std::string() : text.substr(begin, end - begin + 1);
  };
  const std::string section = trim(assignment.substr(0, dot));
  const std::string key = trim(assignment.substr(dot + 1, equals - dot - 1));
  const std::string value = trim(assignment.substr(equals + 1));
  const std::string origin = "--set " + assignment;
  bool is_toml = true;
  try {
    (void)toml::parse("x = " + value);
  } catch (const toml::parse_error&) {
    is_toml = false;
  }
  // `--set model.path=dir/model` would need quotes inside quotes on a shell: a string field takes
  // the text as it is unless it is a quoted TOML string.
  const auto field = std::find_if(fields_.begin(), fields_.end(), [&](const Field& f) {
    return f.section == section && f.key == key;
  });
  const bool wants_string =
      field != fields_.end() && std::holds_alternative<std::string*>(field->target);
  const bool is_quoted = !value.empty() && (value.front() == '"' || value.front() == '\'');
  const std::string right = (!is_toml || (wants_string && !is_quoted)) ? quoted(value) : value;
  read_text(fmt::format("[{}]\n{} = {}\n", section, key, right), origin);
}

bool ConfigBinder::was_set(const std::string& section, const std::string& key) const {
  return std::find(set_keys_.begin(), set_keys_.end(), section + "." + key) != set_keys_.end();
}

std::string ConfigBinder::to_toml() const {
  std::string out;
  for (const Section& section : sections_) {
    out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section.name);
    for (const Field& field : fields_) {
      if (field.section == section.name) {
        out += fmt::format("{} = {}\n", field.key, value_text(field.target));
      }
    }
  }
  return out;
}

std::string ConfigBinder::help() const {
  std::string out;
  for (const Section& section : sections_) {
    out += fmt::format("{}[{}]  # {}\n", out.empty() ? "" : "\n", section.name, section.doc);
    for (const Field& field : fields_) {
      if (field.section != section.name) continue;
      out += fmt::format("{} = {}\n    {}\n", field.key, value_text(field.target), field.doc);
      if (!field.choices.empty())
        out += fmt::format("    One of: {}.\n", fmt::join(field.choices, ", "));
    }
  }
  return out;
}

std::string ConfigBinder::markdown() const {
  std::string out;
  for (const Section& section : sections_) {
    out += fmt::format("\n## `[{}]`\n\n{}\n\n| key | default | what it does |\n|---|---|---|\n",
                       section.name, section.doc);
    for (const Field& field : fields_) {
      if (field.section != section.name) continue;
      std::string doc = field.doc;
      if (!field.choices.empty()) {
        doc += fmt::format(" One of: `{}`.", fmt::join(field.choices, "`, `"));
      }
      out += fmt::format("| `{}` | `{}` | {} |\n", field.key, value_text(field.target), doc);
    }
  }
  return out;
}

}  // namespace quadrille
