// What reader and writer of the safetensors container both go by.
#pragma once

#include <cstdint>

namespace quadrille::tensor {

inline constexpr uint64_t kMaxHeader = 100'000'000;  // Bytes; the reference library's limit.
inline constexpr const char* kSingleFile = "model.safetensors";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";

}  // namespace quadrille::tensor
