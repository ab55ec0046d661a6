// Configuration: plain structs with defaults; one sentence a field; read from TOML, changed by
// `--set section.key=value`, written back as resolved TOML, printed as help and as documentation.
//
// A struct's owner binds its fields once:
//
//   void bind(OptimizerConfig& c, ConfigBinder& b) {
//     b.field("lr", c.lr, "Peak learning rate.");
//   }
//   ConfigBinder b;  b.section("optimizer", "AdamW and its schedule.");  bind(config.optimizer, b);
//
// The binder holds pointers into the structs: they must outlive it. An unknown key or a wrong type
// is a UsageError that names the file, the key and the nearest known key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

namespace quadrille {

class ConfigBinder {
 public:
  using Target = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*,
                              std::vector<int64_t>*, std::vector<double>*>;
  struct Field {
    std::string section;
    std::string key;
    Target target;
    std::string doc;
    std::vector<std::string> choices;  // For strings with a fixed set of values; else empty.
  };
  struct Section {
    std::string name;
    std::string doc;
  };

  void section(std::string name, std::string doc);
  template <class T>
  void field(std::string key, T& value, std::string doc, std::vector<std::string> choices = {}) {
    add(std::move(key), Target(&value), std::move(doc), std::move(choices));
  }

  // Tables that repeat ([[reward.part]]): the names are let through and left to the owner.
  void allow_tables(std::string section, std::string key);

  void read_file(const std::filesystem::path& path);
  void read_text(const std::string& toml, const std::string& origin);
  // "a.b=c"; c is TOML, or a bare word taken as a string.
  void set(const std::string& assignment);

  // The resolved configuration as TOML that reads back to the same values.
  std::string to_toml() const;
  // Every field with its default and sentence, for `--help-config`. Call it on freshly made
  // structs.
  std::string help() const;
  // The same as a Markdown page.
  std::string markdown() const;

  const std::vector<Field>& fields() const { return fields_; }
  // True if the file or a --set named this key.
  bool was_set(const std::string& section, const std::string& key) const;

 private:
  void add(std::string key, Target target, std::string doc, std::vector<std::string> choices);
  std::string nearest(const std::string& dotted) const;

  std::vector<Section> sections_;
  std::vector<Field> fields_;
  std::vector<std::string> tables_;
  std::vector<std::string> set_keys_;
};

}  // namespace quadrille
