// c = a b in bfloat16, summed in float32, by oneDNN; a and b as they are or transposed.
#include <dnnl.hpp>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace specdec {
namespace {

using Bfloat16Matrix = ffi::Buffer<ffi::BF16, 2>;
using Matrix = ffi::Buffer<ffi::F32, 2>;

// A matrix of these dimensions that lies in memory row by row, or (transposed) column by column.
dnnl::memory::desc Describe(int64_t rows, int64_t columns, bool transposed,
                            dnnl::memory::data_type type) {
  const dnnl::memory::dims strides = transposed ? dnnl::memory::dims{1, rows}
                                                : dnnl::memory::dims{columns, 1};
  return {{rows, columns}, type, strides};
}

ffi::Error Mixed(Bfloat16Matrix a, Bfloat16Matrix b, ffi::Result<Matrix> c, bool transposed_a,
                 bool transposed_b) {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const int64_t M = c->dimensions()[0], N = c->dimensions()[1];
  const int64_t K = a.dimensions()[transposed_a ? 0 : 1];
  try {
    using type = dnnl::memory::data_type;
    const dnnl::memory::desc of_a = Describe(M, K, transposed_a, type::bf16);
    const dnnl::memory::desc of_b = Describe(K, N, transposed_b, type::bf16);
    const dnnl::memory::desc of_c = Describe(M, N, false, type::f32);
    // Made anew for each call, but oneDNN remembers the code it has generated.
    const dnnl::matmul product(dnnl::matmul::primitive_desc(engine, of_a, of_b, of_c));
    dnnl::stream stream(engine);
    product.execute(stream, {{DNNL_ARG_SRC, {of_a, engine, a.untyped_data()}},
                             {DNNL_ARG_WEIGHTS, {of_b, engine, b.untyped_data()}},
                             {DNNL_ARG_DST, {of_c, engine, c->untyped_data()}}});
    stream.wait();
  } catch (const dnnl::error& error) {
    return ffi::Error::Internal(error.what());
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace specdec

XLA_FFI_DEFINE_HANDLER_SYMBOL(SpecdecMixed, specdec::Mixed,
                              ffi::Ffi::Bind()
                                  .Arg<specdec::Bfloat16Matrix>()  // a
                                  .Arg<specdec::Bfloat16Matrix>()  // b
                                  .Ret<specdec::Matrix>()
                                  .Attr<bool>("transposed_a")
                                  .Attr<bool>("transposed_b"));
