// Jinja templates as chat templates use them, rendered the way Python's jinja2 does with
// trim_blocks and lstrip_blocks on and transformers' additions (tojson, raise_exception,
// strftime_now, {% generation %}).
//
// A template comes with a model from somewhere: it is parsed once, and limits turn one that would
// run away into an error. What is not supported is named, with its line, when the template is
// parsed or, inside an if, when it is reached.
#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace quadrille::text::jinja {

struct Function;
using Variables = std::map<std::string, Value>;

// What one rendering may use.
struct Limits {
  size_t template_bytes = 1 << 20;
  size_t text_bytes = 64 << 20;      // Of the result, and of each text on the way.
  size_t created_bytes = 1UL << 30;  // Of all texts and lists made, dropped ones included.
  int64_t steps = 20'000'000;        // Statements and calls.
  int depth = 1200;  // Statements and expressions inside each other, through all macros.
};

// Bytes [begin, end) of a rendered text.
struct TextSpan {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const TextSpan&) const = default;
};

struct Rendered {
  std::string text;
  std::vector<TextSpan>
      generations;                 // What stands between {% generation %} and {% endgeneration %}.
  bool generations_placed = true;  // False: one stands in a macro, so that its place is not known.
};

class Template {
 public:
  // `name` is what errors call it: "chat_template.jinja". Throws FormatError with name and line.
  Template(std::string name, std::string_view source, Limits limits = {});
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  // strftime_now() needs `now`. Throws FormatError with name and line; what the template itself
  // raises is FormatError too, with its text.
  Rendered render(const Variables& variables, std::optional<std::tm> now = {}) const;

  bool has_generation() const { return has_generation_; }

 private:
  std::string name_;
  Limits limits_;
  std::unique_ptr<Function> root_;
  bool has_generation_ = false;
};

}  // namespace quadrille::text::jinja
