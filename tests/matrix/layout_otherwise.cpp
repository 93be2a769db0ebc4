// Where results lie otherwise than the plain call's, and why: see layout.h.
#include "matrix/layout.h"

namespace matrix {

const std::vector<LaidOtherwise>& laid_otherwise() {
  static const std::vector<LaidOtherwise> list{
      {"Weights of every example's own are groups of channels of one convolution: of several images, "
       "or of channels-last ones, the examples' results lie between each other, and their weights' "
       "gradients lie by rows.",
       {{"outputs gradients tangents",
         "_slow_conv2d_backward.output_mask _slow_conv2d_forward conv1d conv2d conv_transpose2d.input "
         "convolution convolution_backward"}}},
      {"Made of a convolution with time last, of which it is a view.", {{"outputs gradients tangents", "conv_tbc"}}},
      {"What all examples share is expanded over them. Kernels do not take a stride of zero for "
       "channels-last.",
       {{"gradients",
         "_adaptive_avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool2d avg_pool1d "
         "avg_pool2d max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices "
         "reflection_pad2d replication_pad2d"},
        {"outputs tangents",
         "_adaptive_avg_pool2d_backward adaptive_max_pool2d_backward avg_pool2d_backward "
         "max_pool2d_with_indices_backward reflection_pad2d_backward replication_pad2d_backward"}}},
      {"Lies as the indices do, which the plain call does not ask.",
       {{"gradients",
         "adaptive_max_pool2d_backward fractional_max_pool2d_backward "
         "max_pool2d_with_indices_backward"}}},
      {"The kernel brings its operands into rows. The pointwise operators that it is made of here "
       "keep the order they have.",
       {{"outputs tangents",
         "_batch_norm_no_update _conj_copy _native_batch_norm_legit_functional "
         "_native_batch_norm_legit_no_training _neg_view_copy _weight_norm_interface batch_norm "
         "batch_norm_backward glu_jvp huber_loss_backward masked_scatter max_pool1d mse_loss_backward "
         "native_batch_norm native_batch_norm_backward renorm rrelu smooth_l1_loss_backward "
         "soft_margin_loss_backward"},
        {"outputs",
         "_fake_quantize_learnable_per_channel_affine_backward "
         "_fake_quantize_learnable_per_tensor_affine_backward log_sigmoid_backward masked_fill.Tensor"}}},
      {"The kernel gives its result by rows. The tangent is computed from the argument's, and lies as "
       "that.",
       {{"tangents",
         "_foreach_pow.ScalarAndTensor _log_softmax _log_softmax_backward_data _softmax_backward_data "
         "layer_norm log_sigmoid log_sigmoid_forward log_softmax.int mvlgamma native_layer_norm "
         "native_layer_norm_backward pow.Scalar special_multigammaln"}}},
      {"The kernel gives its result in an order of its own (heads last). The tangent is made of "
       "products of matrices.",
       {{"tangents", "_scaled_dot_product_flash_attention_for_cpu_backward"}}},
      {"Where the operands lie in different orders, the derivative takes that of another one than the "
       "result.",
       {{"tangents", "_foreach_copy copy fill.Tensor grid_sampler_2d_backward logit_backward pow.Tensor_Tensor"},
        {"gradients",
         "_log_softmax_backward_data _softmax_backward_data _trilinear batch_norm_backward "
         "binary_cross_entropy_with_logits fmax fmin huber_loss huber_loss_backward l1_loss "
         "masked_scatter mse_loss native_batch_norm_backward smooth_l1_loss smooth_l1_loss_backward"}}},
      {"The decomposition adds the product to the addend, and the sum lies as the product.",
       {{"outputs tangents", "addr"}}},
      {"Parts of one tensor that holds both, real and imaginary: no copy is made of either.",
       {{"gradients", "complex polar"}}},
      {"Works in rows: running products, distances by a product of matrices, pixels moved, elements "
       "counted through.",
       {{"gradients",
         "_euclidean_dist index_reduce masked_select pixel_shuffle prod prod.dim_int "
         "scatter_reduce.two take"},
        {"outputs gradients tangents", "index_fill.int_Scalar index_fill.int_Tensor put"}}},
      {"One look-up serves all examples, and the batch comes out where the indices do: a view brings "
       "it to the front.",
       {{"outputs tangents", "index.Tensor"}, {"gradients", "index_put"}, {"outputs", "index_select"}}},
      {"Every example's part begins elsewhere, so that it is read by index; the plain call's is a "
       "view.",
       {{"outputs tangents", "narrow.Tensor"}}},
      {"A part of a larger result: of the coordinates without the example's, of the segments without "
       "those of what is left over, of all examples' items.",
       {{"outputs tangents", "_ctc_loss_backward _ctc_loss_backward.Tensor segment_reduce"},
        {"outputs", "argwhere nonzero"}}},
      {"Depends on the layout in memory: it is worked out on a base in rows.",
       {{"gradients", "as_strided"}, {"outputs tangents", "as_strided_scatter"}}},
      {"LAPACK works by columns. Derivatives of factorizations and solutions are products of "
       "matrices, by rows.",
       {{"gradients", "_linalg_det _linalg_slogdet det linalg_det linalg_slogdet logdet slogdet"},
        {"tangents",
         "_linalg_eigh _linalg_svd cholesky inverse linalg_cholesky linalg_cholesky_ex linalg_eig "
         "linalg_eigh linalg_inv linalg_inv_ex linalg_lu_factor_ex linalg_matrix_exp "
         "linalg_matrix_power linalg_qr"},
        {"gradients tangents", "linalg_householder_product linalg_lstsq linalg_lu_solve ormqr"},
        {"outputs gradients tangents", "triangular_solve"}}},
  };
  return list;
}

}  // namespace matrix
