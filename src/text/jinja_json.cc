// json.dumps(), which transformers puts in the place of Jinja's tojson: no HTML escapes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja_interpreter.h"
#include "text/jinja_text.h"

namespace quadrille::text::jinja {
namespace {

void append_string(std::string& out, const std::string& s, bool ensure_ascii) {
  out.push_back('"');
  const auto escape = [&](uint32_t unit) { out += fmt::format("\\u{:04x}", unit); };
  for (const char32_t c : to_code_points(s)) {
    switch (c) {
      case '"':
        out += "\\\"";
        continue;
      case '\\':
        out += "\\\\";
        continue;
      case '\n':
        out += "\\n";
        continue;
      case '\r':
        out += "\\r";
        continue;
      case '\t':
        out += "\\t";
        continue;
      case '\b':
        out += "\\b";
        continue;
      case '\f':
        out += "\\f";
        continue;
      default:
        break;
    }
    if (c < 0x20 || (ensure_ascii && c >= 0x7F && c < 0x10000)) {
      escape(c);
    } else if (ensure_ascii && c >= 0x10000) {
      escape(0xD800 + ((c - 0x10000) >> 10));
      escape(0xDC00 + ((c - 0x10000) & 0x3FF));
    } else {
      append_utf8(out, c);
    }
  }
  out.push_back('"');
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return repr(value);
}

class Writer {
 public:
  Writer(Interpreter& in, const JsonStyle& style) : in_(in), style_(style) {}
  std::string out;

  void write(const Value& v, int depth) {
    if (depth > 200) throw RenderError("a value is nested more than 200 deep");
    in_.step();
    if (out.size() > charged_ + 65536) {
      in_.charge(out.size() - charged_);
      charged_ = out.size();
    }
    switch (v.kind()) {
      case Kind::kNone:
        out += "null";
        break;
      case Kind::kBool:
        out += v.as_bool() ? "true" : "false";
        break;
      case Kind::kInt:
        out += fmt::format("{}", v.as_int());
        break;
      case Kind::kFloat:
        out += number_text(v.as_double());
        break;
      case Kind::kString:
        append_string(out, v.as_string(), style_.ensure_ascii);
        break;
      case Kind::kList:
      case Kind::kTuple:
        write_list(v.as_list(), depth);
        break;
      case Kind::kDict:
        write_dict(v.as_dict(), depth);
        break;
      default:
        type_error(fmt::format("Object of type {} is not JSON serializable", type_name(v)));
    }
  }

 private:
  void new_line(int depth) {
    if (!style_.indent) return;
    in_.charge(style_.indent->size() * static_cast<size_t>(depth));
    out.push_back('\n');
    for (int i = 0; i < depth; ++i) out += *style_.indent;
  }

  void write_list(const List& items, int depth) {
    if (items.empty()) {
      out += "[]";
      return;
    }
    out.push_back('[');
    bool first = true;
    for (const Value& item : items) {
      if (!first) out += style_.item_separator;
      first = false;
      new_line(depth + 1);
      write(item, depth + 1);
    }
    new_line(depth);
    out.push_back(']');
  }

  static std::string key_text(const Value& key) {
    switch (key.kind()) {
      case Kind::kString:
        return key.as_string();
      case Kind::kNone:
        return "null";
      case Kind::kBool:
        return key.as_bool() ? "true" : "false";
      case Kind::kInt:
        return fmt::format("{}", key.as_int());
      case Kind::kFloat:
        return number_text(key.as_double());
      default:
        type_error(
            fmt::format("keys must be str, int, float, bool or None, not {}", type_name(key)));
    }
  }

  void write_dict(const Dict& dict, int depth) {
    if (dict.size() == 0) {
      out += "{}";
      return;
    }
    auto items = dict.items();
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(),
                       [](const auto& a, const auto& b) { return compare(a.first, b.first) < 0; });
    }
    out.push_back('{');
    bool first = true;
    for (const auto& [key, value] : items) {
      if (!first) out += style_.item_separator;
      first = false;
      new_line(depth + 1);
      append_string(out, key_text(key), style_.ensure_ascii);
      out += style_.key_separator;
      write(value, depth + 1);
    }
    new_line(depth);
    out.push_back('}');
  }

  Interpreter& in_;
  const JsonStyle& style_;
  size_t charged_ = 0;
};

}  // namespace

std::string to_json(Interpreter& in, const Value& value, const JsonStyle& style) {
  Writer writer(in, style);
  writer.write(value, 0);
  return std::move(writer.out);
}

}  // namespace quadrille::text::jinja
