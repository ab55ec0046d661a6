// PCRE2 with its limits in mind: the compiled code keeps its backtracking points on a stack of its
// own, which may grow to kMaxStackBytes; beyond that the interpreter, which uses the heap, does the
// one match again.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/tokenizer_regex.h"

#include <pcre2.h>

#include "base/error.h"
#include "text/tokenizer_pattern.h"
#include "text/tokenizer_unicode.h"

namespace quadrille::text {
namespace {

constexpr size_t kFirstStackBytes = 64 << 10;
constexpr size_t kMaxStackBytes = 256 << 20;  // Address space; pages are used as matches need them.

struct FreeCode {
  void operator()(pcre2_code* p) const noexcept { pcre2_code_free(p); }
};
struct FreeMatchData {
  void operator()(pcre2_match_data* p) const noexcept { pcre2_match_data_free(p); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* p) const noexcept { pcre2_match_context_free(p); }
};
struct FreeCompileContext {
  void operator()(pcre2_compile_context* p) const noexcept { pcre2_compile_context_free(p); }
};
struct FreeStack {
  void operator()(pcre2_jit_stack* p) const noexcept { pcre2_jit_stack_free(p); }
};

std::string message_of(int error) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct RegexScratch::Parts {
  std::unique_ptr<pcre2_match_context, FreeMatchContext> context{
      pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, FreeStack> stack{
      pcre2_jit_stack_create(kFirstStackBytes, kMaxStackBytes, nullptr)};
  // One pair of offsets: the patterns have no groups.
  std::unique_ptr<pcre2_match_data, FreeMatchData> match{pcre2_match_data_create(1, nullptr)};
};

RegexScratch::RegexScratch() : parts_(std::make_unique<Parts>()) {
  if (!parts_->context || !parts_->match) throw Error("PCRE2: out of memory");
  // The default limits count steps, so a long text would look like a runaway match. Time is bounded
  // by the patterns, which are the model's own.
  pcre2_set_match_limit(parts_->context.get(), UINT32_MAX);
  pcre2_set_depth_limit(parts_->context.get(), UINT32_MAX);
  if (parts_->stack) pcre2_jit_stack_assign(parts_->context.get(), nullptr, parts_->stack.get());
}
RegexScratch::~RegexScratch() = default;
RegexScratch::RegexScratch(RegexScratch&&) noexcept = default;

struct Regex::Code {
  std::unique_ptr<pcre2_code, FreeCode> compiled;
  bool jit = false;
};

Regex::Regex(std::string_view pattern) : code_(std::make_unique<Code>()) {
  const std::string translated = to_pcre2(pattern);
  const std::unique_ptr<pcre2_compile_context, FreeCompileContext> context(
      pcre2_compile_context_create(nullptr));
  if (!context) throw Error("PCRE2: out of memory");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->compiled.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE, &error, &offset, context.get()));
  if (!code_->compiled) {
    throw PatternError(fmt::format("PCRE2 refuses \"{}\" (from \"{}\") at byte {}: {}", translated,
                                   pattern, offset, message_of(error)));
  }
  code_->jit = pcre2_jit_compile(code_->compiled.get(), PCRE2_JIT_COMPLETE) == 0;
}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

bool RegexMatches::next(Range& found) {
  const pcre2_code* code = regex_.code_->compiled.get();
  pcre2_match_data* match = scratch_.parts_->match.get();
  pcre2_match_context* context = scratch_.parts_->context.get();
  // pcre2_match() refuses a null subject in older versions.
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text_.data() == nullptr ? "" : text_.data());
  while (at_ <= text_.size()) {
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (regex_.code_->jit)
      rc = pcre2_jit_match(code, subject, text_.size(), at_, 0, match, context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(code, subject, text_.size(), at_, PCRE2_NO_JIT | PCRE2_NO_UTF_CHECK, match,
                       context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0)
      throw Error("PCRE2 gave up at byte {} of a text of {}: {}", at_, text_.size(),
                  message_of(rc));
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(match);
    found = {offsets[0], offsets[1]};
    at_ = found.end;
    if (found.begin != found.end || found.end != last_end_) {
      last_end_ = found.end;
      return true;
    }
    at_ += at_ < text_.size() ? static_cast<size_t>(code_point_at(text_, at_).bytes) : 1;
  }
  at_ = text_.size() + 1;
  return false;
}

}  // namespace quadrille::text
