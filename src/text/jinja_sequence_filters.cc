// Filters on sequences and mappings. As in Jinja, map, select and their like are walked when
// something asks for their items, and once.
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja_filters.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_text.h"

namespace quadrille::text::jinja {
namespace {

Value generator(Iterator next) {
  return Value::object(std::make_shared<Generator>(std::move(next)));
}
Value no_items() {
  return generator([](Value&) { return false; });
}

// Works when first asked for an item, so that what is never walked cannot fail.
Value lazily(std::function<Iterator()> make) {
  return generator([make = std::move(make), next = Iterator()](Value& out) mutable {
    if (!next) next = make();
    return next(out);
  });
}
Iterator walk(List items) {
  return iterate(Value::list(std::move(items)));
}

List collect(Interpreter& in, const Value& from) {
  List out;
  Iterator next = iterate(from);
  for (Value v; next(v);) {
    in.step();
    in.charge(sizeof(Value));
    out.push_back(v);
  }
  return out;
}

// Sorting and comparing fold case unless told otherwise.
Value folded(const Value& v, bool case_sensitive) {
  return v.is_string() && !case_sensitive ? Value::string(to_lower(v.as_string())) : v;
}

Value length(Call& call) {
  bind_arguments(call, "length", {});
  const std::optional<int64_t> length = length_of(call.self);
  if (!length) type_error(fmt::format("object of type '{}' has no len()", type_name(call.self)));
  return Value::integer(*length);
}

Value first(Call& call) {
  bind_arguments(call, "first", {});
  Iterator next = iterate(call.self);
  Value v;
  return next(v) ? v : Value::undefined("No first item, sequence was empty.");
}

// reversed(v); nullopt where Python has none.
std::optional<List> reversed(Interpreter& in, const Value& v) {
  if (!length_of(v) || v.as<Namespace>() != nullptr) return std::nullopt;
  List items = collect(in, v);
  std::reverse(items.begin(), items.end());
  return items;
}

Value last(Call& call) {
  bind_arguments(call, "last", {});
  const std::optional<List> items = reversed(call.in, call.self);
  if (!items) type_error(fmt::format("'{}' object is not reversible", type_name(call.self)));
  return items->empty() ? Value::undefined("No last item, sequence was empty.") : items->front();
}

Value reverse(Call& call) {
  bind_arguments(call, "reverse", {});
  if (call.self.is_string()) {
    std::u32string all = to_code_points(call.self.as_string());
    std::reverse(all.begin(), all.end());
    return call.in.text(to_utf8(all));
  }
  std::optional<List> items = reversed(call.in, call.self);
  if (!items) {
    List rest = collect(call.in, call.self);
    std::reverse(rest.begin(), rest.end());
    return Value::list(std::move(rest));
  }
  return generator(walk(std::move(*items)));
}

Value list(Call& call) {
  bind_arguments(call, "list", {});
  return Value::list(collect(call.in, call.self));
}

Value items(Call& call) {
  bind_arguments(call, "items", {});
  if (call.self.is_undefined()) return no_items();
  return lazily([dict = call.self] {
    if (!dict.is(Kind::kDict)) type_error("Can only get item pairs from a mapping.");
    return walk(DictView(dict, DictView::What::kItems).list());
  });
}

Value join(Call& call) {
  const List args = bind_arguments(call, "join", {"d", "attribute"});
  const std::string separator = args[0].missing() ? "" : to_string(args[0]);
  std::string out;
  bool is_first = true;
  Iterator next = iterate(call.self);
  for (Value v; next(v);) {
    call.in.step();
    const std::string part = to_string(follow_path(call.in, v, args[1]));
    call.in.charge(part.size() + separator.size());
    if (!is_first) out += separator;
    is_first = false;
    out += part;
  }
  return call.in.text(std::move(out));
}

Value map(Call& call) {
  if (!truth(call.self)) return no_items();
  Interpreter& in = call.in;
  if (call.args.empty()) {
    const List args = bind_arguments(call, "map", {"attribute", "default"});
    if (args[0].missing()) throw RenderError("map requires a filter argument");
    return lazily([&in, args, self = call.self]() -> Iterator {
      return [&in, args, next = iterate(self)](Value& out) {
        Value v;
        if (!next(v)) return false;
        out = follow_path(in, v, args[0]);
        if (out.is_undefined() && !args[1].missing() && !args[1].is_none()) out = args[1];
        return true;
      };
    });
  }
  const std::string name = string_argument(call.args[0], "map");
  const List args(call.args.begin() + 1, call.args.end());
  return lazily([&in, name, args, keywords = call.keywords, self = call.self]() -> Iterator {
    return [&in, name, args, keywords, next = iterate(self)](Value& out) {
      Call inner{in, {}, args, keywords};
      if (!next(inner.self)) return false;
      out = in.filter(name, inner);
      return true;
    };
  });
}

// select, reject and their -attr forms: a test on the item or on one of its attributes.
template <bool keep, bool by_attribute>
Value select(Call& call) {
  if (!truth(call.self)) return no_items();
  Interpreter& in = call.in;
  List args = call.args;
  Value path;
  if (by_attribute) {
    if (args.empty()) throw RenderError("Missing parameter for attribute name");
    path = args[0];
    args.erase(args.begin());
  }
  std::string name;
  if (!args.empty()) {
    name = string_argument(args[0], "select");
    args.erase(args.begin());
  }
  return lazily([&in, name, args, path, keywords = call.keywords, self = call.self]() -> Iterator {
    return [&in, name, args, path, keywords, next = iterate(self)](Value& out) {
      while (next(out)) {
        Call inner{in, follow_path(in, out, path), args, keywords};
        const bool passed = name.empty() ? truth(inner.self) : in.test(name, inner);
        if (passed == keep) return true;
      }
      return false;
    };
  });
}

List unique_items(Interpreter& in, const Value& from, bool case_sensitive, const Value& path) {
  List seen;
  List out;
  for (const Value& v : collect(in, from)) {
    const Value key = folded(follow_path(in, v, path), case_sensitive);
    if (!hashable(key)) type_error(fmt::format("unhashable type: '{}'", type_name(key)));
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& s) { return equals(s, key); }))
      continue;
    if (seen.size() > 10000) throw RenderError("unique: more than 10000 different items");
    seen.push_back(key);
    out.push_back(v);
  }
  return out;
}

Value unique(Call& call) {
  const List args = bind_arguments(call, "unique", {"case_sensitive", "attribute"});
  return lazily([&in = call.in, args, self = call.self] {
    return walk(unique_items(in, self, truth(args[0]), args[1]));
  });
}

// Sorts (key, item) pairs, keeping the order of equal keys also when reversed.
List sorted(std::vector<std::pair<Value, Value>> pairs, bool reverse) {
  std::stable_sort(pairs.begin(), pairs.end(), [&](const auto& a, const auto& b) {
    return reverse ? compare(b.first, a.first) < 0 : compare(a.first, b.first) < 0;
  });
  List out;
  for (auto& [key, item] : pairs) out.push_back(std::move(item));
  return out;
}

Value sort(Call& call) {
  const List args = bind_arguments(call, "sort", {"reverse", "case_sensitive", "attribute"});
  std::vector<Value> paths = {Value()};
  if (args[2].is_string()) {
    paths.clear();
    for (std::string& path : split(args[2].as_string(), ",", -1, false))
      paths.push_back(Value::string(path));
  } else if (!args[2].missing()) {
    paths = {args[2]};
  }
  std::vector<std::pair<Value, Value>> pairs;
  for (const Value& v : collect(call.in, call.self)) {
    List keys;
    for (const Value& path : paths)
      keys.push_back(folded(follow_path(call.in, v, path), truth(args[1])));
    pairs.emplace_back(Value::list(std::move(keys)), v);
  }
  return Value::list(sorted(std::move(pairs), truth(args[0])));
}

Value dictsort(Call& call) {
  const List args = bind_arguments(call, "dictsort", {"case_sensitive", "by", "reverse"});
  const std::string by = args[1].missing() ? "key" : to_string(args[1]);
  if (by != "key" && by != "value")
    throw RenderError("You can only sort by either \"key\" or \"value\"");
  require_defined(call.self);
  if (!call.self.is(Kind::kDict))
    type_error(fmt::format("dictsort needs a mapping, got '{}'", type_name(call.self)));
  std::vector<std::pair<Value, Value>> pairs;
  for (const auto& [key, value] : call.self.as_dict().items()) {
    pairs.emplace_back(folded(by == "key" ? key : value, truth(args[0])),
                       Value::tuple({key, value}));
  }
  return Value::list(sorted(std::move(pairs), truth(args[2])));
}

template <bool largest>
Value extreme(Call& call) {
  const List args = bind_arguments(call, "min", {"case_sensitive", "attribute"});
  Value best;
  Value best_key;
  for (const Value& v : collect(call.in, call.self)) {
    Value key = folded(follow_path(call.in, v, args[1]), truth(args[0]));
    if (!best.missing() && !(largest ? compare(key, best_key) > 0 : compare(key, best_key) < 0))
      continue;
    best = v;
    best_key = std::move(key);
  }
  return best.missing() ? Value::undefined("No aggregated item, sequence was empty.") : best;
}

Value sum(Call& call) {
  const List args = bind_arguments(call, "sum", {"attribute", "start"});
  Value total = args[1].missing() ? Value::integer(0) : args[1];
  if (total.is_string()) type_error("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& v : collect(call.in, call.self)) {
    total = binary_operation(call.in, "+", total, follow_path(call.in, v, args[0]));
  }
  return total;
}

Value groupby(Call& call) {
  const List args = bind_arguments(call, "groupby", {"attribute", "default", "case_sensitive"}, 1);
  std::vector<std::pair<Value, Value>> pairs;
  const auto real_key = [&](const Value& v) {
    Value key = follow_path(call.in, v, args[0]);
    return key.is_undefined() && !args[1].missing() && !args[1].is_none() ? args[1] : key;
  };
  const auto key_of = [&](const Value& v) { return folded(real_key(v), truth(args[2])); };
  for (const Value& v : collect(call.in, call.self)) pairs.emplace_back(key_of(v), v);
  List groups;
  List group;
  const auto close = [&] {
    if (!group.empty()) groups.push_back(Value::tuple({real_key(group[0]), Value::list(group)}));
    group.clear();
  };
  for (const Value& v : sorted(std::move(pairs), false)) {
    if (!group.empty() && !equals(key_of(group[0]), key_of(v))) close();
    group.push_back(v);
  }
  close();
  return Value::list(std::move(groups));
}

bool filled(const Value& fill) {
  return !fill.missing() && !fill.is_none();
}

List batches(Interpreter& in, const Value& from, int64_t size, const Value& fill) {
  List out;
  List row;
  for (const Value& v : collect(in, from)) {
    if (static_cast<int64_t>(row.size()) == size) {
      out.push_back(Value::list(row));
      row.clear();
    }
    row.push_back(v);
  }
  if (row.empty()) return out;
  if (filled(fill)) {
    in.charge(static_cast<size_t>(std::clamp<int64_t>(size, 0, INT32_MAX)) * sizeof(Value));
    while (static_cast<int64_t>(row.size()) < size) row.push_back(fill);
  }
  out.push_back(Value::list(row));
  return out;
}

Value batch(Call& call) {
  const List args = bind_arguments(call, "batch", {"linecount", "fill_with"}, 1);
  return lazily([&in = call.in, args, self = call.self] {
    return walk(batches(in, self, index_argument(args[0], "batch"), args[1]));
  });
}

List slices(Interpreter& in, const Value& from, int64_t count, const Value& fill) {
  const List all = collect(in, from);
  if (count == 0) throw RenderError("division by zero");
  in.charge(static_cast<size_t>(std::clamp<int64_t>(count, 0, INT32_MAX)) * sizeof(Value));
  const auto length = static_cast<int64_t>(all.size());
  const int64_t more = count > 0 ? length % count : 0;  // So many slices get one item more.
  List out;
  int64_t begin = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t end = begin + length / count + (i < more ? 1 : 0);
    List part(all.begin() + begin, all.begin() + end);
    if (filled(fill) && i >= more) part.push_back(fill);
    out.push_back(Value::list(std::move(part)));
    begin = end;
  }
  return out;
}

Value slice_filter(Call& call) {
  const List args = bind_arguments(call, "slice", {"slices", "fill_with"}, 1);
  return lazily([&in = call.in, args, self = call.self] {
    return walk(slices(in, self, index_argument(args[0], "slice"), args[1]));
  });
}

}  // namespace

const FilterTable& sequence_filters() {
  static const FilterTable table = {
      {"batch", batch},
      {"count", length},
      {"dictsort", dictsort},
      {"first", first},
      {"groupby", groupby},
      {"items", items},
      {"join", join},
      {"last", last},
      {"length", length},
      {"list", list},
      {"map", map},
      {"max", extreme<true>},
      {"min", extreme<false>},
      {"reject", select<false, false>},
      {"rejectattr", select<false, true>},
      {"reverse", reverse},
      {"select", select<true, false>},
      {"selectattr", select<true, true>},
      {"slice", slice_filter},
      {"sort", sort},
      {"sum", sum},
      {"unique", unique},
  };
  return table;
}

Builtin find_filter(std::string_view name) {
  for (const FilterTable* table : {&value_filters(), &sequence_filters()}) {
    if (const auto at = table->find(name); at != table->end()) return at->second;
  }
  return nullptr;
}

}  // namespace quadrille::text::jinja
