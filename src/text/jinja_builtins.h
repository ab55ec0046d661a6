// What templates can call by name: filters, tests, methods and global functions.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace quadrille::text::jinja {

class Interpreter;

struct Call {
  Interpreter& in;
  Value self;  // What is filtered or tested; the object of a method.
  List args;
  std::vector<std::pair<std::string, Value>> keywords;
};

using Builtin = Value (*)(Call&);

// nullptr: no such filter, test or method.
Builtin find_filter(std::string_view name);
Builtin find_test(std::string_view name);
Builtin find_string_method(std::string_view name);
Builtin find_dict_method(std::string_view name);
Builtin find_list_method(std::string_view name);
// range, namespace, dict, raise_exception, strftime_now, cycler, joiner; missing: no such global.
Value find_global(std::string_view name);

// An attribute that Python's type has: what to do with it here.
enum class Attribute { kNone, kUnsafe, kUnsupported };
Attribute python_attribute(const Value& object, std::string_view name);

// Sorts the arguments of a call by parameter name, as Python does. Missing where not given.
List bind_arguments(const Call& call, const char* function,
                    std::initializer_list<const char*> names, size_t required = 0);
// An argument as an integer or a text, or TypeError.
Int integer_argument(const Value& v, const char* what);
int64_t index_argument(const Value& v, const char* what);
const std::string& string_argument(const Value& v, const char* what);

// A method taken from its object, or a global function.
class BuiltinFunction final : public Object {
 public:
  BuiltinFunction(std::string name, Builtin function, Value self = {})
      : name_(std::move(name)), function_(function), self_(std::move(self)) {}
  std::string type_name() const override { return "builtin_function_or_method"; }
  std::string repr(int) const override { return "<built-in method " + name_ + ">"; }
  bool callable() const override { return true; }
  Value call(Call& call) override {
    call.self = self_;
    return function_(call);
  }

 private:
  std::string name_;
  Builtin function_;
  Value self_;
};

// What map, select and the like return: can be walked once.
class Generator final : public Object {
 public:
  explicit Generator(Iterator next, std::string type = "generator")
      : next_(std::move(next)), type_(std::move(type)) {}
  std::string type_name() const override { return type_; }
  std::optional<Iterator> iterate() override {
    return [this, self = shared_from_this()](Value& out) { return next_(out); };
  }

 private:
  Iterator next_;
  std::string type_;
};

class Range final : public Object {
 public:
  Range(int64_t start, int64_t stop, int64_t step);
  std::string type_name() const override { return "range"; }
  std::string repr(int depth) const override;
  bool truth() const override { return count_ > 0; }
  std::optional<Iterator> iterate() override;
  std::optional<int64_t> length() const override { return count_; }
  std::optional<Value> item(const Value& key) override;
  bool subscriptable() const override { return true; }
  bool equals(const Object& other) const override;
  int64_t at(int64_t i) const { return start_ + i * step_; }

 private:
  int64_t start_, stop_, step_, count_;
};

// dict.keys(), .values(), .items().
class DictView final : public Object {
 public:
  enum class What { kKeys, kValues, kItems };
  DictView(Value dict, What what) : dict_(std::move(dict)), what_(what) {}
  std::string type_name() const override;
  std::string repr(int depth) const override;
  bool truth() const override { return dict_.as_dict().size() > 0; }
  std::optional<Iterator> iterate() override;
  std::optional<int64_t> length() const override {
    return static_cast<int64_t>(dict_.as_dict().size());
  }
  std::optional<bool> contains(const Value& v) override;
  List list() const;

 private:
  Value dict_;
  What what_;
};

// The one value a template can change: `{% set ns.count = ns.count + 1 %}`.
class Namespace final : public Object {
 public:
  std::string type_name() const override { return "Namespace"; }
  std::string repr(int depth) const override;
  std::optional<Value> attribute(const std::string& name) override;
  void set(const std::string& name, Value value);
  void clear() { fields_ = Dict(); }

 private:
  Dict fields_;
};

// A filter's attribute argument: "a.b.0" looks up a, then b, then 0; none gives the item itself.
Value follow_path(Interpreter& in, Value item, const Value& path);

}  // namespace quadrille::text::jinja
