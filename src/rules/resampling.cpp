// Interpolation to another size is linear and treats channels alike: the backward operator is its transpose and the
// reverse. A batch is folded into the items.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "core/torch_version.h"
#include "records/demands.h"
#include "records/op.h"
#include "rules/registry.h"
#include "rules/small_windows.h"

namespace tower::rules {
namespace {

std::vector<c10::SymInt> symbolic(at::IntArrayRef sizes) { return {sizes.begin(), sizes.end()}; }

// `Up(x, size, attributes…)` and its transpose `Down(g, size, input_size, attributes…)`: of one element each, or of
// means of several.
enum class Of : bool { one, several };
template <class Up, class Down, int64_t rank, Of of, class... Attributes>
void interpolation() {
  if constexpr (of == Of::one) op<Up>().moves(Moves::elements);
  else op<Up>().small(small::weighted).depends(Depends::on_plane);
  op<Up>().folds_into_items(rank).template linear<0>(
      [](Ct<0> ct, Shape x, const Ints& size, const Attributes&... attributes) {
        return Down::call(*ct, symbolic(size), symbolic(x.sizes), attributes...);
      });
  demands<Up>([](const Example& e) {
    TORCH_CHECK(e.dim(0) == rank, "It is expected input_size equals to ", rank, ", but got size ", e.dim(0));
  });
  op<Down>()
      .small(of == Of::one ? small::sums : small::weighted)
      .family("folded into items",
              [](VmapFrame& f) {
                Ints input_size = f.stack[2].toIntVector();
                const int64_t items = input_size[0];
                input_size[0] *= f.batch_size;
                f.stack[2] = input_size;
                f.to_front(0, false);
                f.stack[0] = f.tensor(0).flatten(0, 1);
                f.call();
                f.result(f.tensor(0).unflatten(0, {f.batch_size, items}));
              })
      .template linear<0>([](Ct<0> ct, Skip, const Ints& size, Skip, const Attributes&... attributes) {
        return Up::call(*ct, symbolic(size), attributes...);
      });
}

using Scale = std::optional<double>;

}  // namespace

void resampling() {
  using namespace at::_ops;
  interpolation<upsample_nearest1d, upsample_nearest1d_backward, 3, Of::one, Scale>();
  interpolation<upsample_nearest2d, upsample_nearest2d_backward, 4, Of::one, Scale, Scale>();
  interpolation<upsample_nearest3d, upsample_nearest3d_backward, 5, Of::one, Scale, Scale, Scale>();
  interpolation<_upsample_nearest_exact1d, _upsample_nearest_exact1d_backward, 3, Of::one, Scale>();
  interpolation<_upsample_nearest_exact2d, _upsample_nearest_exact2d_backward, 4, Of::one, Scale, Scale>();
  interpolation<_upsample_nearest_exact3d, _upsample_nearest_exact3d_backward, 5, Of::one, Scale, Scale, Scale>();
  interpolation<upsample_linear1d, upsample_linear1d_backward, 3, Of::several, bool, Scale>();
  interpolation<upsample_bilinear2d, upsample_bilinear2d_backward, 4, Of::several, bool, Scale, Scale>();
  interpolation<upsample_bicubic2d, upsample_bicubic2d_backward, 4, Of::several, bool, Scale, Scale>();
  interpolation<upsample_trilinear3d, upsample_trilinear3d_backward, 5, Of::several, bool, Scale, Scale, Scale>();
  interpolation<_upsample_bilinear2d_aa, _upsample_bilinear2d_aa_backward, 4, Of::several, bool, Scale, Scale>();
  interpolation<_upsample_bicubic2d_aa, _upsample_bicubic2d_aa_backward, 4, Of::several, bool, Scale, Scale>();
#ifdef TOWER_HAS_LANCZOS
  interpolation<_upsample_lanczos2d_aa, _upsample_lanczos2d_aa_backward, 4, Of::several, bool, Scale, Scale>();
#endif
}

}  // namespace tower::rules
