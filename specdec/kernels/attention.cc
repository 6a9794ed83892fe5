// Attention of few queries to the slots that each of them sees, and to no others: what lies beyond
// is neither read nor waited for, however long the buffer is. float32.
//
// A query's result doesn't depend on what is asked beside it.
#include <cmath>
#include <vector>

#include "parts.h"

namespace ffi = xla::ffi;

namespace specdec {
namespace {

constexpr int64_t kSerialProducts = 1 << 14;  // multiplications not worth a second thread
constexpr int64_t kMaxParts = 8;

float Dot(const float* a, const float* b, int64_t size) {
  Vector sums = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) sums += Load(a + i) * Load(b + i);
  float sum = Sum(sums);
  for (; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

void AddScaled(float scale, const float* from, int64_t size, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) Store(to + i, Load(to + i) + Load(from + i) * scale);
  for (; i < size; ++i) to[i] += from[i] * scale;
}

// out = softmax(query keys^T + bias) values over `count` slots; bias[count - 1 - s] is slot s's.
void Attend(const float* query, const float* keys, const float* values, const float* bias,
            int64_t count, int64_t K, float* scores, float* out) {
  std::fill(out, out + K, 0.0f);
  if (count <= 0) return;
  float largest = -INFINITY;
  for (int64_t s = 0; s < count; ++s) {
    scores[s] = Dot(query, keys + s * K, K) + (bias ? bias[count - 1 - s] : 0.0f);
    largest = std::max(largest, scores[s]);
  }
  float total = 0;
  for (int64_t s = 0; s < count; ++s) total += scores[s] = std::exp(scores[s] - largest);
  for (int64_t s = 0; s < count; ++s) AddScaled(scores[s] / total, values + s * K, K, out);
}

ffi::Error FewQueries(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> queries,
                      ffi::Buffer<ffi::F32> keys, ffi::Buffer<ffi::F32> values,
                      ffi::Buffer<ffi::S32> visible, ffi::Buffer<ffi::F32> bias,
                      ffi::Result<ffi::Buffer<ffi::F32>> out) {
  const auto shape = keys.dimensions();  // [B, H, S, K]
  const int64_t B = shape[0], H = shape[1], S = shape[2], K = shape[3];
  const int64_t T = queries.dimensions()[1];  // [B, T, H * K]
  const bool has_bias = bias.element_count() > 0;  // [H, S], or [H, 0]
  const float *q = queries.typed_data(), *k = keys.typed_data(), *v = values.typed_data();
  const float* table = bias.typed_data();
  const int32_t* counts = visible.typed_data();  // [B, T]
  float* y = out->typed_data();
  int64_t num_products = 0;
  for (int64_t i = 0; i < B * T; ++i) num_products += 2 * H * K * std::max(counts[i], 0);
  const int64_t num_parts = num_products < kSerialProducts ? 1 : std::min(B * H, kMaxParts);
  RunParts(pool, num_parts, [=](int part) {
    std::vector<float> scores(S);
    for (int64_t bh = part; bh < B * H; bh += num_parts) {
      const int64_t b = bh / H, h = bh % H;
      for (int64_t t = 0; t < T; ++t) {
        const int64_t at = ((b * T + t) * H + h) * K;
        const int64_t count = std::min<int64_t>(counts[b * T + t], S);
        Attend(q + at, k + bh * S * K, v + bh * S * K, has_bias ? table + h * S : nullptr, count,
               K, scores.data(), y + at);
      }
    }
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace specdec

XLA_FFI_DEFINE_HANDLER_SYMBOL(SpecdecFewQueries, specdec::FewQueries,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()  // queries
                                  .Arg<ffi::Buffer<ffi::F32>>()  // keys
                                  .Arg<ffi::Buffer<ffi::F32>>()  // values
                                  .Arg<ffi::Buffer<ffi::S32>>()  // visible
                                  .Arg<ffi::Buffer<ffi::F32>>()  // bias
                                  .Ret<ffi::Buffer<ffi::F32>>());
