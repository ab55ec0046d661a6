#include "text/tokenizer_bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "text/tokenizer_splitter.h"
#include "text/tokenizer_unicode.h"

namespace quadrille::text {
namespace {

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

uint64_t hash_pair(uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15U;
  return pair ^ pair >> 32;
}

}  // namespace

PieceCache::PieceCache() : entries_(kEntries) {}

bool PieceCache::find(std::string_view piece, uint64_t hash, std::vector<int32_t>& ids) const {
  const Entry& entry = entries_[hash % kEntries];
  if (entry.bytes != piece.size() || std::memcmp(entry.piece, piece.data(), piece.size()) != 0)
    return false;
  ids.insert(ids.end(), entry.ids, entry.ids + entry.count);
  return true;
}

void PieceCache::insert(std::string_view piece, uint64_t hash, const int32_t* ids, size_t count) {
  if (count > kMaxIds) return;
  Entry& entry = entries_[hash % kEntries];
  entry.bytes = static_cast<uint8_t>(piece.size());
  entry.count = static_cast<uint8_t>(count);
  std::memcpy(entry.piece, piece.data(), piece.size());
  std::copy(ids, ids + count, entry.ids);
}

BpeModel::BpeModel(const TokenizerFile& file, const Vocabulary& vocabulary, bool byte_alphabet)
    : vocabulary_(vocabulary), takes_bytes_(byte_alphabet) {
  for (int c = 0; c < 128; ++c) {
    const char character = static_cast<char>(c);
    ascii_ids_[c] = vocabulary.find({&character, 1}).value_or(-1);
  }
  read_options(file);
  for (int b = 0; b < 256; ++b) {
    letter_ids_[b] = vocabulary.find(byte_letter(static_cast<unsigned char>(b))).value_or(-1);
    fallback_ids_[b] =
        byte_fallback_ ? vocabulary.find(fmt::format("<0x{:02X}>", b)).value_or(-1) : -1;
  }
  read_merges(file);
  if (!takes_bytes_ || !ignore_merges_) return;
  whole_pieces_ = std::make_unique<Vocabulary>(vocabulary.ids(), vocabulary.tokens());
  std::string bytes;
  for (int64_t id = 0; id < vocabulary.ids(); ++id) {
    bytes.clear();
    if (vocabulary.contains(id) && append_letter_bytes(vocabulary.token(id), bytes)) {
      whole_pieces_->add(bytes, static_cast<int32_t>(id));
    }
  }
}

void BpeModel::read_options(const TokenizerFile& file) {
  const JsonPlace model = JsonPlace(file, file.rest, "").member("model");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.string_or(affix, "").empty()) model.member(affix).fail("is not supported");
  }
  const JsonPlace dropout = model.member("dropout");
  if (!dropout.is_null() &&
      (!dropout.value().is_number() || dropout.value().get<double>() != 0.0)) {
    dropout.fail("is not supported: the same text must give the same ids");
  }
  fuse_unknown_ = model.boolean_or("fuse_unk", false);
  byte_fallback_ = model.boolean_or("byte_fallback", false);
  ignore_merges_ = model.boolean_or("ignore_merges", false);
  const JsonPlace unknown = model.member("unk_token");
  if (unknown.is_null()) return;
  const auto id = vocabulary_.find(unknown.string());
  if (!id) unknown.fail("\"{}\" is not in model.vocab", unknown.string());
  unknown_id_ = *id;
}

void BpeModel::read_merges(const TokenizerFile& file) {
  merges_.assign(std::bit_ceil(2 * file.merges.size() + 2), Merge{});
  const size_t mask = merges_.size() - 1;
  std::string joined;
  for (size_t rank = 0; rank < file.merges.size(); ++rank) {
    const auto& [left, right] = file.merges[rank];
    const auto id_of = [&](const std::string& token) {
      const auto id = vocabulary_.find(token);
      if (!id)
        throw FormatError("{}: model.merges[{}]: \"{}\" is not in model.vocab", file.origin, rank,
                          token);
      return *id;
    };
    joined.assign(left).append(right);
    const Merge merge{pair_of(id_of(left), id_of(right)), static_cast<uint32_t>(rank),
                      id_of(joined)};
    size_t slot = hash_pair(merge.pair) & mask;
    while (merges_[slot].pair != kNoPair && merges_[slot].pair != merge.pair)
      slot = (slot + 1) & mask;
    merges_[slot] =
        merge;  // Of a pair that is listed twice the last one counts, as in the library.
    if (!takes_bytes_ && !left.empty() && !right.empty()) note_joint(left, right);
  }
  std::sort(joints_.begin(), joints_.end());
  joints_.erase(std::unique(joints_.begin(), joints_.end()), joints_.end());
}

void BpeModel::note_joint(std::string_view left, std::string_view right) {
  joints_.push_back(uint64_t{code_point_before(left, left.size()).value} << 32 |
                    code_point_at(right, 0).value);
}

const BpeModel::Merge& BpeModel::merge_of(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  const size_t mask = merges_.size() - 1;
  size_t slot = hash_pair(pair) & mask;
  while (merges_[slot].pair != pair && merges_[slot].pair != kNoPair) slot = (slot + 1) & mask;
  return merges_[slot];
}

int32_t BpeModel::character_id(std::string_view character) const {
  if (character.size() == 1) return ascii_ids_[static_cast<unsigned char>(character[0])];
  return vocabulary_.find(character).value_or(-1);
}

// A character pair that no merge joins can never end up inside one token, so both sides can be
// encoded apart. Unknown characters are left whole: they may be fused with their neighbours.
bool BpeModel::may_cut(std::string_view text, size_t at) const {
  const CodePoint left = code_point_before(text, at);
  const CodePoint right = code_point_at(text, at);
  if (std::binary_search(joints_.begin(), joints_.end(), uint64_t{left.value} << 32 | right.value))
    return false;
  return character_id(text.substr(at - static_cast<size_t>(left.bytes),
                                  static_cast<size_t>(left.bytes))) >= 0 &&
         character_id(text.substr(at, static_cast<size_t>(right.bytes))) >= 0;
}

void BpeModel::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (ignore_merges_ || takes_bytes_ || piece.size() <= PieceCache::kMaxBytes)
    return encode_word(piece, scratch, ids);
  size_t begin = 0;
  for (size_t at = 0; at < piece.size();) {
    if (at > begin && may_cut(piece, at)) {
      encode_word(piece.substr(begin, at - begin), scratch, ids);
      begin = at;
    }
    at += static_cast<size_t>(code_point_at(piece, at).bytes);
  }
  if (begin < piece.size()) encode_word(piece.substr(begin), scratch, ids);
}

void BpeModel::encode_word(std::string_view piece, Scratch& scratch,
                           std::vector<int32_t>& ids) const {
  const bool short_enough = piece.size() <= PieceCache::kMaxBytes;
  const uint64_t hash = short_enough ? hash_bytes(piece) : 0;
  if (short_enough && scratch.cache.find(piece, hash, ids)) return;
  const size_t before = ids.size();
  std::optional<int32_t> whole;
  if (ignore_merges_) whole = takes_bytes_ ? whole_pieces_->find(piece) : vocabulary_.find(piece);
  if (whole) {
    ids.push_back(*whole);
  } else {
    scratch.symbols.clear();
    start_symbols(piece, scratch.symbols);
    scratch.symbols.size() <= kLongPiece ? merge_short(scratch) : merge_long(scratch);
    ids.insert(ids.end(), scratch.symbols.begin(), scratch.symbols.end());
  }
  if (short_enough) scratch.cache.insert(piece, hash, ids.data() + before, ids.size() - before);
}

void BpeModel::start_symbols(std::string_view piece, std::vector<int32_t>& symbols) const {
  bool unknown_waits = false;
  for (size_t at = 0; at < piece.size();) {
    std::string_view character =
        piece.substr(at, takes_bytes_ ? 1 : static_cast<size_t>(code_point_at(piece, at).bytes));
    at += character.size();
    const int32_t id = takes_bytes_ ? letter_ids_[static_cast<unsigned char>(character[0])]
                                    : character_id(character);
    if (id >= 0) {
      if (unknown_waits) symbols.push_back(unknown_id_);
      unknown_waits = false;
      symbols.push_back(id);
      continue;
    }
    if (takes_bytes_) character = byte_letter(static_cast<unsigned char>(character[0]));
    const bool by_bytes = std::all_of(character.begin(), character.end(), [&](char byte) {
      return fallback_ids_[static_cast<unsigned char>(byte)] >= 0;
    });
    if (by_bytes) {
      // An unknown character that waits stays waiting: it comes out after these bytes, as in the
      // library.
      for (const char byte : character)
        symbols.push_back(fallback_ids_[static_cast<unsigned char>(byte)]);
      continue;
    }
    if (unknown_id_ < 0) continue;  // Without an unknown token the library drops the character.
    if (unknown_waits && !fuse_unknown_) symbols.push_back(unknown_id_);
    unknown_waits = true;
  }
  if (unknown_waits) symbols.push_back(unknown_id_);
}

void BpeModel::merge_short(Scratch& scratch) const {
  std::vector<int32_t>& symbols = scratch.symbols;
  const size_t start = symbols.size();
  if (start < 2) return;
  std::vector<uint32_t>& ranks = scratch.ranks;  // Of the pair (i, i + 1).
  ranks.resize(start);
  const auto rank_at = [&](size_t i) { return merge_of(symbols[i], symbols[i + 1]).rank; };
  for (size_t i = 0; i + 1 < start; ++i) ranks[i] = rank_at(i);
  size_t pairs = start - 1;
  while (pairs > 0) {
    const size_t best = static_cast<size_t>(
        std::min_element(ranks.begin(), ranks.begin() + static_cast<ptrdiff_t>(pairs)) -
        ranks.begin());
    if (ranks[best] == kNoRank) break;
    symbols[best] = merge_of(symbols[best], symbols[best + 1]).id;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
    std::copy(ranks.begin() + static_cast<ptrdiff_t>(best) + 1,
              ranks.begin() + static_cast<ptrdiff_t>(pairs),
              ranks.begin() + static_cast<ptrdiff_t>(best));
    --pairs;
    if (best < pairs) ranks[best] = rank_at(best);
    if (best > 0) ranks[best - 1] = rank_at(best - 1);
  }
}

void BpeModel::merge_long(Scratch& scratch) const {
  constexpr uint32_t kNone = ~uint32_t{0};
  std::vector<int32_t>& symbols = scratch.symbols;
  const auto count = static_cast<uint32_t>(symbols.size());
  QD_CHECK(symbols.size() < kNone, "a piece of {} symbols", symbols.size());
  auto& previous = scratch.previous;
  auto& following = scratch.following;
  auto& heap = scratch.heap;
  previous.resize(count);
  following.resize(count);
  heap.clear();
  const auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.rank_and_position > b.rank_and_position;
  };
  const auto candidate = [&](uint32_t at) {
    const int32_t left = symbols[at];
    const int32_t right = symbols[following[at]];
    const uint32_t rank = merge_of(left, right).rank;
    if (rank != kNoRank) heap.push_back({uint64_t{rank} << 32 | at, left, right});
    return rank != kNoRank;
  };
  for (uint32_t i = 0; i < count; ++i) {
    previous[i] = i == 0 ? kNone : i - 1;
    following[i] = i + 1 == count ? kNone : i + 1;
  }
  for (uint32_t i = 0; i + 1 < count; ++i) candidate(i);
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Scratch::Candidate top = heap.back();
    heap.pop_back();
    const auto at = static_cast<uint32_t>(top.rank_and_position);
    const uint32_t next = following[at];
    // Merged away or changed since it was queued. Removed symbols are marked by -1.
    if (symbols[at] != top.left || next == kNone || symbols[next] != top.right) continue;
    symbols[at] = merge_of(top.left, top.right).id;
    symbols[next] = -1;
    following[at] = following[next];
    if (following[at] != kNone) previous[following[at]] = at;
    if (previous[at] != kNone && candidate(previous[at]))
      std::push_heap(heap.begin(), heap.end(), later);
    if (following[at] != kNone && candidate(at)) std::push_heap(heap.begin(), heap.end(), later);
  }
  std::erase(symbols, -1);
}

}  // namespace quadrille::text
