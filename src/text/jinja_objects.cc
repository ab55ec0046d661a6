// Objects with behaviour, global functions, and how arguments are sorted.
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja_interpreter.h"
#include "text/jinja_text.h"

namespace quadrille::text::jinja {
namespace {

constexpr int64_t kMaxRange = 100000;  // As in Jinja's sandbox.

template <size_t N>
bool one_of(std::string_view name, const std::string_view (&names)[N]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Value range_function(Call& call) {
  const List args = bind_arguments(call, "range", {"", "", ""}, 1);
  const auto number = [&](size_t i) { return index_argument(args[i], "range"); };
  const bool only_stop = args[1].missing();
  const int64_t start = only_stop ? 0 : number(0);
  const int64_t stop = number(only_stop ? 0 : 1);
  const int64_t step = args[2].missing() ? 1 : number(2);
  if (step == 0) throw RenderError("range() arg 3 must not be zero");
  auto range = std::make_shared<Range>(start, stop, step);
  if (*range->length() > kMaxRange) {
    throw RenderError(fmt::format("range too big: more than {} numbers", kMaxRange));
  }
  return Value::object(std::move(range));
}

// dict(mapping or pairs, name=value, ...), which namespace() takes too.
Dict dict_from(Call& call, const char* function) {
  Dict out;
  if (call.args.size() > 1) type_error(fmt::format("{} expected at most 1 argument", function));
  if (!call.args.empty()) {
    const Value& from = call.args[0];
    require_defined(from);
    if (from.is(Kind::kDict)) {
      out = from.as_dict();
    } else {
      Iterator next = iterate(from);
      for (Value pair; next(pair);) {
        List two;
        Iterator part = iterate(pair);
        for (Value v; part(v);) two.push_back(v);
        if (two.size() != 2) throw RenderError("a dictionary is made of pairs");
        if (!hashable(two[0])) type_error("unhashable key");
        out.set(two[0], two[1]);
      }
    }
  }
  for (auto& [name, value] : call.keywords) out.set(Value::string(name), value);
  call.in.charge(out.size() * sizeof(Value));
  return out;
}

Value dict_function(Call& call) {
  return Value::dict(dict_from(call, "dict"));
}

Value namespace_function(Call& call) {
  auto ns = std::make_shared<Namespace>();
  const Dict fields = dict_from(call, "namespace");
  for (const auto& [key, value] : fields.items()) ns->set(to_string(key), value);
  call.in.remember(ns);
  return Value::object(std::move(ns));
}

Value raise_function(Call& call) {
  const List args = bind_arguments(call, "raise_exception", {"message"}, 1);
  throw RenderError(to_string(args[0]));
}

Value strftime_function(Call& call) {
  const List args = bind_arguments(call, "strftime_now", {"format"}, 1);
  const std::string& format = string_argument(args[0], "strftime_now");
  if (!call.in.now()) throw RenderError("the template asks for the date, and none was given");
  std::string out(format.size() * 8 + 256, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &*call.in.now()));
  return call.in.text(std::move(out));
}

class Cycler final : public Object {
 public:
  explicit Cycler(List items) : items_(std::move(items)) {}
  std::string type_name() const override { return "Cycler"; }
  std::optional<Value> attribute(const std::string& name) override {
    const auto method = [&](Builtin f) {
      return Value::object(
          std::make_shared<BuiltinFunction>(name, f, Value::object(shared_from_this())));
    };
    if (name == "current") return items_[at_];
    if (name == "next") return method([](Call& call) { return call.self.as<Cycler>()->next(); });
    if (name == "reset") {
      return method([](Call& call) {
        call.self.as<Cycler>()->at_ = 0;
        return Value::none();
      });
    }
    return std::nullopt;
  }

 private:
  Value next() {
    const Value value = items_[at_];
    at_ = (at_ + 1) % items_.size();
    return value;
  }
  List items_;
  size_t at_ = 0;
};

class Joiner final : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  std::string type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Value call(Call&) override { return std::exchange(used_, true) ? separator_ : Value::string(""); }

 private:
  Value separator_;
  bool used_ = false;
};

Value cycler_function(Call& call) {
  if (call.args.empty()) throw RenderError("at least one item has to be provided");
  return Value::object(std::make_shared<Cycler>(call.args));
}

Value joiner_function(Call& call) {
  const List args = bind_arguments(call, "joiner", {"sep"});
  return Value::object(std::make_shared<Joiner>(args[0].missing() ? Value::string(", ") : args[0]));
}

}  // namespace

Range::Range(int64_t start, int64_t stop, int64_t step) : start_(start), stop_(stop), step_(step) {
  const Int distance = step > 0 ? static_cast<Int>(stop) - start : static_cast<Int>(start) - stop;
  const Int stride = step > 0 ? Int{step} : -Int{step};
  count_ = distance <= 0
               ? 0
               : static_cast<int64_t>(std::min<Int>((distance - 1) / stride + 1, INT64_MAX));
}

std::string Range::repr(int) const {
  return step_ == 1 ? fmt::format("range({}, {})", start_, stop_)
                    : fmt::format("range({}, {}, {})", start_, stop_, step_);
}

std::optional<Iterator> Range::iterate() {
  return [this, self = shared_from_this(), i = int64_t{0}](Value& out) mutable {
    if (i >= count_) return false;
    out = Value::integer(at(i++));
    return true;
  };
}

std::optional<Value> Range::item(const Value& key) {
  if (!key.is_integral()) return std::nullopt;
  const Int i = key.as_int() < 0 ? key.as_int() + count_ : key.as_int();
  if (i < 0 || i >= count_) return std::nullopt;
  return Value::integer(at(static_cast<int64_t>(i)));
}

bool Range::equals(const Object& other) const {
  const auto* range = dynamic_cast<const Range*>(&other);
  if (range == nullptr || range->count_ != count_) return false;
  return count_ == 0 || (range->start_ == start_ && (count_ == 1 || range->step_ == step_));
}

std::string DictView::type_name() const {
  return what_ == What::kKeys ? "dict_keys"
                              : (what_ == What::kValues ? "dict_values" : "dict_items");
}

List DictView::list() const {
  List out;
  for (const auto& [key, value] : dict_.as_dict().items()) {
    out.push_back(
        what_ == What::kKeys ? key : (what_ == What::kValues ? value : Value::tuple({key, value})));
  }
  return out;
}

std::string DictView::repr(int depth) const {
  return type_name() + "(" + jinja::repr(Value::list(list()), depth) + ")";
}

std::optional<Iterator> DictView::iterate() {
  return jinja::iterate(Value::list(list()));
}

std::optional<bool> DictView::contains(const Value& v) {
  if (what_ != What::kKeys) return std::nullopt;
  return jinja::contains(dict_, v);
}

std::string Namespace::repr(int depth) const {
  return "<Namespace " + jinja::repr(Value::dict(fields_), depth) + ">";
}

std::optional<Value> Namespace::attribute(const std::string& name) {
  const Value* found = fields_.find(std::string_view(name));
  return found == nullptr ? std::nullopt : std::optional(*found);
}

void Namespace::set(const std::string& name, Value value) {
  if (!name.empty() && name[0] == '_') {
    throw RenderError(
        fmt::format("a namespace cannot hold '{}': the name starts with an underscore", name));
  }
  fields_.set(Value::string(name), std::move(value));
}

Value find_global(std::string_view name) {
  static constexpr std::pair<std::string_view, Builtin> globals[] = {
      {"range", range_function},           {"dict", dict_function},
      {"namespace", namespace_function},   {"raise_exception", raise_function},
      {"strftime_now", strftime_function}, {"cycler", cycler_function},
      {"joiner", joiner_function}};
  for (const auto& [known, function] : globals) {
    if (known == name)
      return Value::object(std::make_shared<BuiltinFunction>(std::string(name), function));
  }
  return {};
}

Attribute python_attribute(const Value& object, std::string_view name) {
  static constexpr std::string_view of_str[] = {
      "encode", "expandtabs", "format_map", "isidentifier", "maketrans", "translate", "casefold"};
  static constexpr std::string_view changes_list[] = {"append", "clear", "pop",    "reverse",
                                                      "insert", "sort",  "extend", "remove"};
  static constexpr std::string_view changes_dict[] = {"clear", "pop", "popitem", "setdefault",
                                                      "update"};
  static constexpr std::string_view of_number[] = {
      "bit_length",      "bit_count", "conjugate", "denominator", "from_bytes", "imag",
      "numerator",       "real",      "to_bytes",  "fromhex",     "hex",        "is_integer",
      "as_integer_ratio"};
  if (name.size() > 4 && name.starts_with("__") && name.ends_with("__") &&
      !object.as<Namespace>()) {
    return Attribute::kUnsafe;
  }
  if (object.is_string() && one_of(name, of_str)) return Attribute::kUnsupported;
  if (object.is_number() && one_of(name, of_number)) return Attribute::kUnsupported;
  if (object.is(Kind::kList) && one_of(name, changes_list)) return Attribute::kUnsafe;
  if (object.is(Kind::kDict) && one_of(name, changes_dict)) return Attribute::kUnsafe;
  if (object.is(Kind::kDict) && name == "fromkeys") return Attribute::kUnsupported;
  // The fields of groupby's named tuples.
  if (object.is(Kind::kTuple) && (name == "grouper" || name == "list"))
    return Attribute::kUnsupported;
  return Attribute::kNone;
}

List bind_arguments(const Call& call, const char* function,
                    std::initializer_list<const char*> names, size_t required) {
  if (call.args.size() > names.size()) {
    type_error(fmt::format("{}() takes at most {} arguments, got {}", function, names.size(),
                           call.args.size()));
  }
  List out(names.size());
  std::copy(call.args.begin(), call.args.end(), out.begin());
  for (const auto& [name, value] : call.keywords) {
    const auto at = std::find_if(names.begin(), names.end(), [&](const char* known) {
      return known[0] != '\0' && name == known;
    });
    if (at == names.end())
      type_error(fmt::format("{}() got an unexpected argument '{}'", function, name));
    Value& slot = out[static_cast<size_t>(at - names.begin())];
    if (!slot.missing()) type_error(fmt::format("{}() got '{}' twice", function, name));
    slot = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (out[i].missing()) type_error(fmt::format("{}() misses argument {}", function, i + 1));
  }
  return out;
}

Int integer_argument(const Value& v, const char* what) {
  require_defined(v);
  if (!v.is_integral())
    type_error(fmt::format("{} needs an integer, got '{}'", what, type_name(v)));
  return v.as_int();
}

int64_t index_argument(const Value& v, const char* what) {
  const Int limit = INT64_MAX;
  return static_cast<int64_t>(std::clamp(integer_argument(v, what), -limit, limit));
}

const std::string& string_argument(const Value& v, const char* what) {
  require_defined(v);
  if (!v.is_string()) type_error(fmt::format("{} needs a string, got '{}'", what, type_name(v)));
  return v.as_string();
}

Value follow_path(Interpreter& in, Value item, const Value& path) {
  if (path.missing() || path.is_none()) return item;
  if (!path.is_string()) return in.item(item, path);
  for (const std::string& part : split(path.as_string(), ".", -1, false)) {
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(),
                                                     [](char c) { return c >= '0' && c <= '9'; });
    item = in.item(
        item, number && part.size() < 19 ? Value::integer(std::stoll(part)) : Value::string(part));
  }
  return item;
}

}  // namespace quadrille::text::jinja
