// Hugging Face folders in and out: config.json, safetensors (single or sharded),
// generation_config.json, and the tokenizer's files carried along unchanged.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/transformer.h"

namespace quadrille::model {

enum class DtypeChoice { kAuto, kFp32, kBf16 };  // auto: fp32 on CPU, the file's dtype on GPU.

// Throws FormatError naming the key when config.json lacks a number or asks for what the family
// cannot do. Where weights lie beside it they settle what the file leaves open: missing bias flags,
// and whether a head that is said to be tied really is.
ModelConfig read_model_config(const std::filesystem::path& folder);

// Every expected tensor must be found once with its shape, every found tensor expected or on the
// family's skip list; errors name tensor and file. The header is checked wholly before anything is
// allocated. `router_fp32`: hold and compute every router in fp32, whatever the family does
// (model.router_dtype).
std::unique_ptr<Transformer> load_model(const std::filesystem::path& folder, DtypeChoice dtype,
                                        at::Device device, bool router_fp32 = false);
// Replaces the values of `model` by the folder's (a checkpoint of the same shape).
void load_weights(Transformer& model, const std::filesystem::path& folder);

struct SaveOptions {
  at::ScalarType dtype = at::kFloat;  // at::kBFloat16 for deployment.
  int64_t max_shard_bytes =
      5'000'000'000;  // Larger models are sharded with an index, written last.
  // Folder whose tokenizer, template and generation files are copied, and whose config.json keeps
  // its other keys.
  std::filesystem::path carry_from;
  std::vector<int32_t> end_tokens;  // Written where no file was carried that says so.
};
// `values`: one tensor per parameter in parameters() order (for example fp32 masters); empty: the
// model's own.
void save_model(const Transformer& model, const std::filesystem::path& folder,
                const SaveOptions& options, const std::vector<at::Tensor>& values = {});

// End tokens: generation_config.json, else config.json. May be empty.
std::vector<int32_t> read_end_tokens(const std::filesystem::path& folder);

// What `quadrille inspect` prints. Checks the whole folder, data sizes included; throws FormatError
// if damaged.
std::string describe_model(const std::filesystem::path& folder);

}  // namespace quadrille::model
