// The "model" of tokenizer.json: byte-pair encoding of one piece of text.
//
// A piece starts as single characters (or bytes); the neighbours whose merge comes first in the
// list are joined, the leftmost of equals, until no merge applies.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer_file.h"
#include "text/tokenizer_vocabulary.h"

namespace quadrille::text {

// Results of short pieces, by piece. A fixed table of cache lines in which a newer piece overwrites
// an older one with the same hash: texts repeat their words, so even a simple table answers nearly
// all pieces.
class PieceCache {
 public:
  static constexpr size_t kMaxBytes = 30;
  static constexpr size_t kMaxIds = 8;

  PieceCache();
  // Appends the ids and returns true if the piece is known. 0 < piece.size() <= kMaxBytes.
  bool find(std::string_view piece, uint64_t hash, std::vector<int32_t>& ids) const;
  void insert(std::string_view piece, uint64_t hash, const int32_t* ids, size_t count);

 private:
  struct alignas(64) Entry {
    uint8_t bytes;  // 0: empty.
    uint8_t count;
    char piece[kMaxBytes];
    int32_t ids[kMaxIds];
  };
  static constexpr size_t kEntries = size_t{1} << 15;

  std::vector<Entry> entries_;
};

class BpeModel {
 public:
  // Working space of one thread.
  struct Scratch {
    struct Candidate {
      uint64_t rank_and_position;  // The heap's order: rank first, then the leftmost.
      int32_t left;
      int32_t right;
    };
    PieceCache cache;
    std::vector<int32_t> symbols;
    std::vector<uint32_t> ranks;
    std::vector<uint32_t> previous;
    std::vector<uint32_t> following;
    std::vector<Candidate> heap;
  };

  // `vocabulary` holds model.vocab and must outlive this. `byte_alphabet`: the tokens are spelt in
  // GPT-2's printable alphabet and the pieces come as the bytes themselves. Throws FormatError.
  BpeModel(const TokenizerFile& file, const Vocabulary& vocabulary, bool byte_alphabet);

  // Appends the ids of a piece: raw bytes with a byte alphabet, else valid UTF-8.
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    uint64_t pair = kNoPair;
    uint32_t rank = kNoRank;
    int32_t id = -1;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};
  static constexpr uint32_t kNoRank = ~uint32_t{0};
  static constexpr size_t kLongPiece = 64;  // Symbols, from which a heap beats looking through all.

  void read_options(const TokenizerFile& file);
  void read_merges(const TokenizerFile& file);
  void note_joint(std::string_view left, std::string_view right);
  const Merge& merge_of(int32_t left, int32_t right) const;
  void encode_word(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;
  void start_symbols(std::string_view piece, std::vector<int32_t>& symbols) const;
  int32_t character_id(std::string_view character) const;
  bool may_cut(std::string_view text, size_t at) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  const Vocabulary& vocabulary_;
  std::vector<Merge> merges_;     // Open addressing by pair, at most half full.
  std::vector<uint64_t> joints_;  // Sorted: the pairs of characters that some merge joins.
  int32_t ascii_ids_[128] = {};   // Ids of single characters, or -1.
  int32_t letter_ids_[256] = {};  // Ids of the letters that stand for bytes, or -1.
  int32_t fallback_ids_[256] =
      {};  // Ids of "<0x00>" to "<0xFF>" if the model falls back to them, or -1.
  std::unique_ptr<Vocabulary> whole_pieces_;  // With ignore_merges: raw bytes -> id.
  int32_t unknown_id_ = -1;
  bool fuse_unknown_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  bool takes_bytes_ = false;
};

}  // namespace quadrille::text
