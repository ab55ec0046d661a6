#include "text/jinja.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace quadrille::text::jinja {
namespace {

using Json = nlohmann::ordered_json;

std::tm some_day() {
  std::tm day{};
  day.tm_year = 2025 - 1900;
  day.tm_mon = 6;
  day.tm_mday = 4;
  day.tm_hour = 13;
  day.tm_min = 5;
  return day;
}

Variables variables_from(const Json& json) {
  Variables out;
  for (const auto& [name, value] : json.items()) out[name] = from_json(value);
  return out;
}

std::string render(const std::string& source, const Json& variables = Json::object(),
                   Limits limits = {}) {
  return Template("t.jinja", source, limits).render(variables_from(variables)).text;
}

std::string error_of(const std::string& source, const Json& variables = Json::object(),
                     Limits limits = {}) {
  try {
    return "no error: " + render(source, variables, limits);
  } catch (const FormatError& error) {
    return error.what();
  }
}

TEST(Jinja, AgreesWithPython) {
  Variables variables;
  int cases = 0;
  for_each_line(
      std::filesystem::path(QD_SOURCE_DIR) / "tests/goldens/text/jinja.jsonl",
      [&](std::string_view line, int64_t number) {
        const Json row = Json::parse(line);
        if (row.contains("variables")) {
          variables = variables_from(row["variables"]);
          return;
        }
        ++cases;
        const auto source = row["template"].get<std::string>();
        SCOPED_TRACE(std::to_string(number) + ": " + source);
        try {
          const Rendered rendered = Template("t.jinja", source).render(variables, some_day());
          if (row.contains("error")) {
            ADD_FAILURE() << "expected the error: " << row["error"] << ", got " << rendered.text;
            return;
          }
          EXPECT_EQ(rendered.text, row["text"].get<std::string>());
          std::vector<TextSpan> spans;
          for (const Json& span : row.value("spans", Json::array()))
            spans.push_back({span[0], span[1]});
          EXPECT_EQ(rendered.generations, spans);
        } catch (const FormatError& error) {
          EXPECT_TRUE(row.contains("error")) << error.what();
        }
      });
  EXPECT_GT(cases, 900);
}

TEST(Jinja, ErrorsNameTemplateAndLine) {
  EXPECT_EQ(error_of("a\nb\n{{ x.y }}"), "t.jinja:3: 'x' is undefined");
  EXPECT_EQ(error_of("\n{% for x in y %}"),
            "t.jinja:2: the template ends inside a block that waits for endfor or else");
  EXPECT_EQ(error_of("\n\n{% include 'x' %}"),
            "t.jinja:3: the statement {% include %} is not supported in chat templates");
  EXPECT_EQ(error_of("{{ 1 | urlize }}"), "t.jinja:1: the filter 'urlize' is not supported");
  EXPECT_EQ(error_of("{{ 'a'.encode() }}"), "t.jinja:1: 'encode' of 'str' is not supported");
  EXPECT_EQ(error_of("x\n{{ raise_exception('roles must alternate') }}"),
            "t.jinja:2: roles must alternate");
  EXPECT_EQ(error_of("{{ strftime_now('%Y') }}"),
            "t.jinja:1: the template asks for the date, and none was given");
  EXPECT_EQ(error_of("{{ x }}", {{"x", Json::parse(R"({"a": ["\u0000"]})")}}),
            "no error: {'a': ['\\x00']}");
  EXPECT_EQ(error_of("\xFF"), "t.jinja: the template is not UTF-8");
}

TEST(Jinja, RunawayTemplatesAreErrors) {
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  Limits small;
  small.steps = 100'000;
  has(error_of("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", {},
               small),
      "steps");
  has(error_of("{{ 'a' * 10 ** 12 }}"), "the limit is");
  has(error_of("{{ [1] * 10 ** 9 }}"), "the limit is");
  has(error_of("{{ '%1000000000d' % 1 }}"), "the limit is");
  has(error_of("{{ 'a'.center(10 ** 15) }}"), "the limit is");
  has(error_of("{{ 'a\n' | indent(10 ** 10) }}"), "the limit is");
  has(error_of("{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s "
               "%}{% endfor %}"),
      "the limit is");
  small.created_bytes = 1 << 20;
  has(error_of("{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = ns.l + ['x' "
               "* 1000] %}{% endfor %}",
               {}, small),
      "made in one rendering");
  small.text_bytes = 1000;
  has(error_of("{% for i in range(999) %}{{ i }}{% endfor %}", {}, small),
      "grows beyond 1000 bytes");
  has(error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), "nested too deeply");
  has(error_of("{% set ns = namespace() %}{% set ns.self = ns %}{{ ns }}"),
      "nested more than 200 deep");
  has(error_of("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"),
      "nested too deeply");
  has(error_of("{{ " + std::string(20000, '-') + "1 }}"), "nested too deeply");
  std::string sum = "1";
  for (int i = 0; i < 20000; ++i) sum += "+1";
  has(error_of("{{ " + sum + " }}"), "more than 500 steps");
  std::string branches = "{% if 0 %}";
  for (int i = 0; i < 20000; ++i) branches += "{% elif 0 %}";
  has(error_of(branches + "{% endif %}"), "more than 500 branches");
  std::string blocks;
  for (int i = 0; i < 20000; ++i) blocks += "{% if 1 %}";
  has(error_of(blocks), "nested too deeply");
  Json deep = 1;
  for (int i = 0; i < 1000; ++i) deep = Json::array({deep});
  EXPECT_THROW(from_json(deep), RenderError);
  Limits tiny;
  tiny.template_bytes = 10;
  has(error_of(std::string(11, 'x'), {}, tiny), "the limit is 10");
}

TEST(Jinja, MacrosKeptInNamespacesDoNotOutliveTheRendering) {
  // Circles of macro, frame and namespace; the address sanitizer would see what is left of them.
  EXPECT_EQ(
      render("{% set ns = namespace() %}{% set ns.me = ns %}"
             "{% macro outer(x) %}{% macro inner() %}{{ x }}{{ ns.me.f is defined }}{% endmacro %}"
             "{% set ns.f = inner %}{% endmacro %}{{ outer('a') }}{{ ns.f() }}"
             "{% for i in [1] %}{% set ns.loop = loop %}{% endfor %}"),
      "aTrue");
}

TEST(Jinja, GenerationInsideAMacroIsNotPlaced) {
  const Template macro(
      "t", "{% macro m() %}{% generation %}x{% endgeneration %}{% endmacro %}{{ m() }}");
  EXPECT_TRUE(macro.has_generation());
  EXPECT_FALSE(macro.render({}).generations_placed);
  EXPECT_EQ(macro.render({}).text, "x");
  EXPECT_FALSE(Template("t", "{{ 1 }}").has_generation());
}

}  // namespace
}  // namespace quadrille::text::jinja
