#include "rollout/transformer_runner.h"

#include "rollout/engine.h"
#include "text/tokenizer.h"

namespace quadrille::rollout {
namespace {

class StreamedText final : public TokenText {
 public:
  explicit StreamedText(const text::Tokenizer& tokenizer) : decoder_(tokenizer, true) {}
  std::string push(int32_t token) override { return decoder_.push(token); }
  std::string finish() override { return decoder_.finish(); }

 private:
  text::StreamDecoder decoder_;
};

Engine::TextFactory text_factory(const text::Tokenizer* tokenizer) {
  if (tokenizer == nullptr) return nullptr;
  // A copy shares the tables and outlives the caller's.
  return [tokenizer = *tokenizer] { return std::make_unique<StreamedText>(tokenizer); };
}

}  // namespace

Engine::Engine(const model::Transformer& model, const text::Tokenizer* tokenizer,
               EngineOptions options)
    : Engine(std::make_unique<TransformerRunner>(model), text_factory(tokenizer), options) {}

RunnerShape TransformerRunner::shape() const {
  const model::ModelConfig& config = model_.config();
  RunnerShape shape;
  shape.vocab = config.vocab;
  shape.max_positions = config.max_positions;
  shape.moe_layers = config.moe_layers();
  shape.top_k = config.top_k;
  shape.page_bytes = tensor::kv_page_bytes(model_.kv_shape(), model_.dtype());
  shape.device = model_.device();
  return shape;
}

void TransformerRunner::make_cache(int64_t pages) {
  cache_ = {};  // Let go of the old one first: the two need not fit together.
  cache_ = tensor::make_kv_cache(model_.kv_shape(), pages, model_.dtype(), model_.device());
}

void TransformerRunner::copy_pages(const at::Tensor& from_N, const at::Tensor& to_N) {
  tensor::copy_pages(cache_, from_N, to_N);
}

at::Tensor TransformerRunner::forward(const model::Batch& batch, model::ForwardExtras* extras) {
  return model_.forward(batch, extras);
}

at::Tensor TransformerRunner::logits(const at::Tensor& hidden_BD) {
  return tensor::logits(hidden_BD, model_.head());
}

tensor::Sampled TransformerRunner::sample(const at::Tensor& logits_BV,
                                          const tensor::SamplingParams& params) {
  return tensor::sample(logits_BV, params);
}

}  // namespace quadrille::rollout
