// The "added_tokens" of tokenizer.json: texts that become one id before anything else looks at
// them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace quadrille::text {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;
  bool single_word = false;  // Not where a letter or digit stands right before or after.
  bool lstrip = false;       // Takes the white space before it with it.
  bool rstrip = false;       // And the white space after it.
  bool normalized = false;   // Looked for after normalization, else before.
};

// Finds tokens in a text: the leftmost, and of those that begin there the longest.
class AddedTokenMatcher {
 public:
  // A part of the text: a token (id >= 0) or what lies between tokens (id < 0).
  struct Part {
    std::string_view text;
    int32_t id = -1;
  };

  // `written` is how the token is spelt where it is looked for. Returns false if that spelling is
  // taken.
  bool add(const std::string& written, const AddedToken& token);
  bool empty() const { return tokens_.empty(); }
  // Appends the parts of valid UTF-8 `text`; none is an empty text.
  void find(std::string_view text, std::vector<Part>& parts) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, int32_t>> children;  // Byte -> node, in byte order.
    int32_t token = -1;  // Index into tokens_ if one ends here.
  };
  // The longest token that begins at text[at]: its index and length, or -1.
  std::pair<int32_t, size_t> longest_at(std::string_view text, size_t at) const;
  size_t next_first_byte(std::string_view text, size_t at) const;

  std::vector<Node> nodes_{Node{}};
  std::vector<AddedToken> tokens_;
  bool first_byte_[256] = {};
  int first_bytes_ = 0;
};

}  // namespace quadrille::text
