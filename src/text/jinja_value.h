// Values of a template as Python sees them: None, bool, int, float, str, list, tuple, dict, and
// objects with behaviour (ranges, views, generators, macros). Templates run in Jinja's immutable
// sandbox, so all data is shared and constant; only a namespace changes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace quadrille::text::jinja {

// Raised while a template runs; becomes a FormatError that names the template and the line.
class RenderError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Python's int has no limit. 128 bits hold every integer JSON can bring; what overflows is an
// error.
using Int = __int128;

class Value;
class Object;
using List = std::vector<Value>;

enum class Kind {
  kMissing,
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kObject
};

// In order of insertion. Looked up one by one: templates have few keys.
class Dict {
 public:
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);
  // For keys known to be new.
  void append(Value key, Value value);
  const std::vector<std::pair<Value, Value>>& items() const { return items_; }
  size_t size() const { return items_.size(); }

 private:
  std::vector<std::pair<Value, Value>> items_;
};

class Value {
 public:
  struct Text {
    std::string bytes;
    bool markup = false;  // The result of |safe or |escape: + escapes what is added to it.
  };

  Value() = default;  // Missing: an argument not given, a variable not set.
  static Value none() { return Value(Data(std::in_place_index<2>)); }
  static Value boolean(bool v) { return Value(Data(std::in_place_index<3>, v)); }
  static Value integer(Int v) { return Value(Data(std::in_place_index<4>, v)); }
  static Value real(double v) { return Value(Data(std::in_place_index<5>, v)); }
  static Value string(std::string v, bool markup = false);
  static Value list(List v);
  static Value tuple(List v);
  static Value dict(Dict v);
  static Value object(std::shared_ptr<Object> v) {
    return Value(Data(std::in_place_index<9>, std::move(v)));
  }
  // `why` is what an operation on it says: "'x' is undefined".
  static Value undefined(std::string why);

  Kind kind() const;
  bool is(Kind k) const { return kind() == k; }
  bool missing() const { return data_.index() == 0; }
  bool is_undefined() const { return data_.index() == 1; }
  bool is_none() const { return data_.index() == 2; }
  bool is_string() const { return data_.index() == 6; }

  bool as_bool() const { return std::get<3>(data_); }
  // Of an int or a bool.
  Int as_int() const;
  // Of a float, an int or a bool.
  double as_double() const;
  const std::string& as_string() const { return std::get<6>(data_)->bytes; }
  bool is_markup() const { return is_string() && std::get<6>(data_)->markup; }
  // Of a list or a tuple.
  const List& as_list() const;
  const Dict& as_dict() const { return *std::get<8>(data_); }
  Object& as_object() const { return *std::get<9>(data_); }
  template <class T>
  T* as() const {
    return is(Kind::kObject) ? dynamic_cast<T*>(std::get<9>(data_).get()) : nullptr;
  }
  const std::string& why_undefined() const { return *std::get<1>(data_); }

  bool is_integral() const { return is(Kind::kInt) || is(Kind::kBool); }
  bool is_number() const { return is_integral() || is(Kind::kFloat); }
  bool is_sequence() const { return is(Kind::kList) || is(Kind::kTuple); }
  // The same object in memory, as `is` compares.
  bool identical(const Value& other) const;

 private:
  struct TupleBox {
    List items;
  };
  using Data = std::variant<std::monostate, std::shared_ptr<const std::string>, std::nullptr_t,
                            bool, Int, double, std::shared_ptr<const Text>,
                            std::shared_ptr<const List>, std::shared_ptr<const Dict>,
                            std::shared_ptr<Object>, std::shared_ptr<const TupleBox>>;
  explicit Value(Data data) : data_(std::move(data)) {}

  Data data_;
};

// Gives the next item until it returns false.
using Iterator = std::function<bool(Value&)>;

struct Call;

// A value with behaviour. What a subclass does not override, it does not support: TypeError in
// Python.
class Object : public std::enable_shared_from_this<Object> {
 public:
  virtual ~Object() = default;
  virtual std::string type_name() const = 0;
  virtual std::string repr(int depth) const;
  virtual bool truth() const { return true; }
  virtual std::optional<Iterator> iterate() { return std::nullopt; }
  virtual std::optional<int64_t> length() const { return std::nullopt; }
  // obj.name and obj[key]; nullopt: no such thing.
  virtual std::optional<Value> attribute(const std::string&) { return std::nullopt; }
  virtual std::optional<Value> item(const Value&) { return std::nullopt; }
  // Has __getitem__, which is what makes a sequence of something with a length.
  virtual bool subscriptable() const { return false; }
  virtual bool equals(const Object& other) const { return this == &other; }
  virtual bool callable() const { return false; }
  virtual Value call(Call& call);
  // `key in obj`, where that is not a walk over the items.
  virtual std::optional<bool> contains(const Value&) { return std::nullopt; }
};

// The name Python gives the type: "str", "NoneType".
std::string type_name(const Value& v);
[[noreturn]] void type_error(const std::string& message);
// UndefinedError, if v is undefined.
void require_defined(const Value& v);

bool truth(const Value& v);
// str(v) and repr(v). Nesting deeper than 200 is an error (a namespace can contain itself).
std::string to_string(const Value& v);
std::string repr(const Value& v, int depth = 0);
bool equals(const Value& a, const Value& b);
// -1, 0 or 1; TypeError where Python has no order.
int compare(const Value& a, const Value& b);
bool contains(const Value& container, const Value& item);
bool hashable(const Value& v);
// len(v) and iter(v); TypeError where there is none. The iterator keeps v alive.
std::optional<int64_t> length_of(const Value& v);
std::optional<Iterator> try_iterate(const Value& v);
Iterator iterate(const Value& v);

// Nesting deeper than 200 is an error.
Value from_json(const nlohmann::ordered_json& json, int depth = 0);

}  // namespace quadrille::text::jinja
