#include "custom_ops/database.h"

#include <ATen/Dispatch.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "custom_ops/names.h"

namespace custom_ops {
namespace {

Saved save_x(const Arguments& in, const ValueList&) { return {in.tensor("x")}; }

// ---- kernels that read memory --------------------------------------------------------------------------------------

// f of every element, through pointers.
template <class F>
Tensor through_pointers(const Tensor& x, F f) {
  const Tensor in = x.contiguous();
  Tensor out = at::empty_like(in);
  AT_DISPATCH_FLOATING_TYPES(in.scalar_type(), "lab", [&] {
    const scalar_t* from = in.const_data_ptr<scalar_t>();
    scalar_t* to = out.mutable_data_ptr<scalar_t>();
    for (int64_t i = 0; i < in.numel(); ++i) to[i] = static_cast<scalar_t>(f(static_cast<double>(from[i])));
  });
  return out;
}

void define_pointwise() {
  custom_op("lab::cube(Tensor x) -> Tensor")
      .kernel(at::kCPU, [](const Tensor& x) { return through_pointers(x, [](double v) { return v * v * v; }); })
      .abstract([](const Tensor& x) { return at::empty_like(x); })
      .save_for_backward(save_x)
      .backward([](const BackwardContext&, const ValueList& saved, const ValueList& grads) -> Gradients {
        return {{"x", 3 * saved[0] * saved[0] * grads[0]}};
      })
      .linear_backward()
      .keep();

  // No derivative rules: its decomposition is differentiated, its kernel is not.
  custom_op("lab::softplus(Tensor x, float beta=1.0) -> Tensor")
      .kernel(at::kCPU,
              [](const Tensor& x, double beta) {
                return through_pointers(x, [beta](double v) { return std::log1p(std::exp(beta * v)) / beta; });
              })
      .decomposition([](const Tensor& x, double beta) { return (x * beta).exp().log1p() / beta; })
      .keep();

  // A decomposition and a rule for batches.
  custom_op("lab::sine(Tensor x) -> Tensor")
      .kernel(at::kCPU, [](const Tensor& x) { return through_pointers(x, [](double v) { return std::sin(v); }); })
      .decomposition([](const Tensor& x) { return x.sin(); })
      .vmap([](const VmapInfo&, const BatchDims& dims, const Tensor& x) {
        static const auto sine = custom_op("lab::sine").typed<Tensor(const Tensor&)>();
        return std::pair(sine(x), dims["x"]);
      })
      .keep();

  custom_op("lab::mul(Tensor x, Tensor y) -> Tensor")
      .kernel([](const Tensor& x, const Tensor& y) { return x * y; })
      .save_for_backward([](const Arguments& in, const ValueList&) -> Saved {
        return {in.tensor("x"), in.tensor("y")};
      })
      .backward([](const BackwardContext& call, const ValueList& saved, const ValueList& grads) {
        Gradients gradients;
        if (call.needs_gradient("x")) gradients["x"] = grads[0] * saved[1].conj();
        if (call.needs_gradient("y")) gradients["y"] = grads[0] * saved[0].conj();
        return gradients;
      })
      .jvp([](const CallContext&, const ValueList& saved, const Arguments& tangents) -> Tensors {
        Tensor sum;
        if (const Tensor& dx = tangents.tensor("x"); dx.defined()) sum = dx * saved[1];
        if (const Tensor& dy = tangents.tensor("y"); dy.defined())
          sum = sum.defined() ? sum + saved[0] * dy : saved[0] * dy;
        return {sum};
      })
      // The batch goes last.
      .vmap([](const VmapInfo&, const BatchDims& dims, const Tensor& x, const Tensor& y) {
        const auto last = [](const Tensor& t, std::optional<int64_t> dim) {
          return dim ? t.movedim(*dim, -1) : t.unsqueeze(-1);
        };
        return std::pair(last(x, dims["x"]) * last(y, dims["y"]), -1);
      })
      .keep();

  custom_op("lab::activation(Tensor x, str kind=\"tanh\") -> Tensor")
      .kernel([](const Tensor& x, std::string_view kind) { return kind == "tanh" ? x.tanh() : x.sigmoid(); })
      .save_for_backward([](const Arguments& in, const ValueList& outs) -> Saved {
        return {outs[0], in.get<std::string>("kind")};
      })
      .backward([](const BackwardContext& call, const ValueList& saved, const ValueList& grads) -> Gradients {
        const Tensor& y = saved[0];
        TORCH_CHECK(call.get<std::string>("kind") == saved.get<std::string>(1));
        return {{"x", grads[0] * (saved.get<std::string>(1) == "tanh" ? 1 - y * y : y * (1 - y))}};
      })
      .linear_backward()
      .keep();

  // Writes to a tensor of its own.
  custom_op("lab::leaky(Tensor x, float slope=0.1) -> Tensor")
      .kernel([](const Tensor& x, double slope) {
        Tensor y = x.clone();
        y.mul_(slope);
        y.copy_(at::where(x > 0, x, y));
        return y;
      })
      .save_for_backward([](const Arguments& in, const ValueList&) -> Saved { return {in.tensor("x").gt(0)}; })
      .backward([](const BackwardContext& call, const ValueList& saved, const ValueList& grads) -> Gradients {
        return {{"x", at::where(saved[0], grads[0], grads[0] * call.get<double>("slope"))}};
      })
      .linear_backward()
      .keep();

  // Complex numbers.
  custom_op("lab::rotate(Tensor z, float angle) -> Tensor")
      .kernel([](const Tensor& z, double angle) { return z * c10::complex<double>(std::cos(angle), std::sin(angle)); })
      .backward([](const BackwardContext& call, const ValueList&, const ValueList& grads) -> Gradients {
        const double angle = call.get<double>("angle");
        return {{"z", grads[0] * c10::complex<double>(std::cos(angle), -std::sin(angle))}};
      })
      .linear_backward()
      .keep();

  // Calls other custom operators, in the kernel and in the backward.
  custom_op("lab::ninth_power(Tensor x) -> Tensor")
      .kernel([](const Tensor& x) {
        static const auto cube = custom_op("lab::cube").typed<Tensor(const Tensor&)>();
        return cube(cube(x));
      })
      .save_for_backward(save_x)
      .backward([](const BackwardContext&, const ValueList& saved, const ValueList& grads) -> Gradients {
        static const auto cube = custom_op("lab::cube").typed<Tensor(const Tensor&)>();
        static const auto mul = custom_op("lab::mul").typed<Tensor(const Tensor&, const Tensor&)>();
        const Tensor y = cube(saved[0]);
        return {{"x", mul(grads[0], 9 * mul(mul(y, y), saved[0] * saved[0]))}};
      })
      .linear_backward()
      .keep();

  // Its backward calls the operator itself.
  custom_op("lab::exp(Tensor x) -> Tensor")
      .kernel(at::kCPU, [](const Tensor& x) { return through_pointers(x, [](double v) { return std::exp(v); }); })
      .save_for_backward(save_x)
      .backward([](const BackwardContext&, const ValueList& saved, const ValueList& grads) -> Gradients {
        static const auto exp = custom_op("lab::exp").typed<Tensor(const Tensor&)>();
        return {{"x", grads[0] * exp(saved[0])}};
      })
      .linear_backward()
      .keep();

  // Forward mode alone: reverse mode transposes it.
  custom_op("lab::square(Tensor x) -> Tensor")
      .kernel([](const Tensor& x) { return x * x; })
      .jvp([](const CallContext&, const ValueList& saved, const Arguments& tangents) -> Tensors {
        return {2 * saved[0] * tangents.tensor("x")};
      })
      .keep();

  // Schema from the function.
  tower::custom_op("lab::axpy", [](double a, const Tensor& x, const Tensor& y) { return a * x + y; }, {"a", "x", "y"})
      .backward([](const BackwardContext& call, const ValueList&, const ValueList& grads) -> Gradients {
        return {{"x", call.get<double>("a") * grads[0]}, {"y", grads[0]}};
      })
      .linear_backward()
      .keep();
}

// ---- several outputs, lists ----------------------------------------------------------------------------------------

void define_structured() {
  custom_op("lab::sort(Tensor x, int dim=-1) -> (Tensor, Tensor)")
      .kernel([](const Tensor& x, int64_t dim) { return at::sort(x, dim); })
      .save_for_backward([](const Arguments&, const ValueList& outs) -> Saved { return {outs[1]}; })
      .backward([](const BackwardContext& call, const ValueList& saved, const ValueList& grads) -> Gradients {
        return {{"x", at::zeros_like(grads[0]).scatter(call.get<int64_t>("dim"), saved[0], grads[0])}};
      })
      .jvp([](const CallContext& call, const ValueList& saved, const Arguments& tangents) -> Tensors {
        return {tangents.tensor("x").gather(call.get<int64_t>("dim"), saved[0]), Tensor()};
      })
      .keep();

  // Integers out: no derivative.
  custom_op("lab::rank(Tensor x) -> Tensor")
      .kernel([](const Tensor& x) { return x.argsort(-1, false).argsort(-1, false); })
      .no_gradient({"x"})
      .keep();

  // As many rows as the data says.
  custom_op("lab::positive_places(Tensor x) -> Tensor")
      .kernel(at::kCPU,
              [](const Tensor& x) {
                const Tensor in = x.contiguous().to(at::kDouble);
                std::vector<int64_t> places;
                for (int64_t i = 0; i < in.numel(); ++i)
                  if (in.const_data_ptr<double>()[i] > 0) places.push_back(i);
                return at::tensor(places, at::kLong);
              })
      .keep();

  custom_op("lab::view_copy(Tensor x, int[] shape) -> Tensor")
      .kernel([](const Tensor& x, at::IntArrayRef shape) { return x.reshape(shape).clone(); })
      .save_for_backward([](const Arguments& in, const ValueList&) -> Saved { return {in.tensor("x").sizes()}; })
      .backward([](const BackwardContext&, const ValueList& saved, const ValueList& grads) -> Gradients {
        return {{"x", grads[0].reshape(saved.get<std::vector<int64_t>>(0))}};
      })
      .linear_backward()
      .keep();

  custom_op("lab::cat(Tensor[] xs, int dim=0) -> Tensor")
      .kernel([](const std::vector<Tensor>& xs, int64_t dim) { return at::cat(xs, dim); })
      .save_for_backward([](const Arguments& in, const ValueList&) -> Saved {
        std::vector<int64_t> sizes;
        for (const Tensor& t : in.tensors("xs")) sizes.push_back(t.size(in.get<int64_t>("dim")));
        return {sizes};
      })
      .backward([](const BackwardContext& call, const ValueList& saved, const ValueList& grads) -> Gradients {
        const auto sizes = saved.get<std::vector<int64_t>>(0);
        Tensors pieces = grads[0].split_with_sizes(sizes, call.get<int64_t>("dim"));
        for (size_t e = 0; e < pieces.size(); ++e)  // holes where nobody asks
          if (!call.needs_gradient("xs", e)) pieces[e] = Tensor();
        return {{"xs", pieces}};
      })
      .linear_backward()
      .keep();

  custom_op("lab::split(Tensor x, int[] sizes, int dim=0) -> Tensor[]")
      .kernel([](const Tensor& x, at::IntArrayRef sizes, int64_t dim) {
        Tensors pieces;
        for (const Tensor& piece : x.split_with_sizes(sizes, dim)) pieces.push_back(piece.clone());
        return pieces;
      })
      .save_for_backward([](const Arguments&, const ValueList&) { return Saved{}; })
      .backward([](const BackwardContext& call, const ValueList&, const ValueList& grads) -> Gradients {
        return {{"x", at::cat(grads.tensors(0), call.get<int64_t>("dim"))}};
      })
      .jvp([](const CallContext& call, const ValueList&, const Arguments& tangents) -> Tensors {
        return tangents.tensor("x").split_with_sizes(call.get<std::vector<int64_t>>("sizes"), call.get<int64_t>("dim"));
      })
      .keep();

  custom_op("lab::add_bias(Tensor x, Tensor? bias=None, float alpha=1.0) -> Tensor")
      .kernel([](const Tensor& x, const std::optional<Tensor>& bias, double alpha) {
        return bias && bias->defined() ? x + alpha * *bias : x.clone();
      })
      .save_for_backward([](const Arguments&, const ValueList&) { return Saved{}; })
      .backward([](const BackwardContext& call, const ValueList&, const ValueList& grads) {
        Gradients gradients{{"x", grads[0]}};
        if (call.needs_gradient("bias")) gradients["bias"] = call.get<double>("alpha") * grads[0];
        return gradients;
      })
      .linear_backward()
      .keep();

  // Undefined gradients arrive as such.
  custom_op("lab::sincos(Tensor x) -> (Tensor, Tensor)")
      .kernel([](const Tensor& x) { return std::tuple(x.sin(), x.cos()); })
      .save_for_backward([](const Arguments&, const ValueList& outs) -> Saved {
        return {outs[0], outs[1]};
      })
      .backward(
          [](const BackwardContext&, const ValueList& saved, const ValueList& grads) -> Gradients {
            Tensor gradient;
            if (grads[0].defined()) gradient = grads[0] * saved[1];
            if (grads[1].defined()) {
              const Tensor other = -grads[1] * saved[0];
              gradient = gradient.defined() ? gradient + other : other;
            }
            return {{"x", gradient}};
          },
          {.materialize_grads = false})
      .linear_backward()
      .keep();

  // A list with holes in, a list out, and a list of numbers.
  custom_op("lab::weigh(Tensor[] xs, Tensor?[] weights, float[] scales) -> Tensor[]")
      .kernel([](const std::vector<Tensor>& xs, const c10::List<std::optional<Tensor>>& weights,
                 const c10::List<double>& scales) {
        Tensors outs;
        for (size_t i = 0; i < xs.size(); ++i) {
          const std::optional<Tensor> w = weights.get(i);
          outs.push_back(w && w->defined() ? xs[i] * *w * scales.get(i) : xs[i] * scales.get(i));
        }
        return outs;
      })
      .save_for_backward([](const Arguments& in, const ValueList&) -> Saved {
        return {in.tensors("xs"), in.value("weights")};
      })
      .backward([](const BackwardContext& call, const ValueList& saved, const ValueList& grads) -> Gradients {
        const Tensors xs = saved.tensors(0), weights = saved.tensors(1), cts = grads.tensors(0);
        const auto scales = call.get<std::vector<double>>("scales");
        Tensors of_xs(xs.size()), of_weights(xs.size());
        for (size_t i = 0; i < xs.size(); ++i) {
          if (call.needs_gradient("xs", i))
            of_xs[i] = weights[i].defined() ? cts[i] * weights[i] * scales[i] : cts[i] * scales[i];
          if (call.needs_gradient("weights", i)) of_weights[i] = cts[i] * xs[i] * scales[i];
        }
        return {{"xs", of_xs}, {"weights", of_weights}};
      })
      .linear_backward()
      .keep();

  custom_op("lab::shift(Tensor x, int[] shifts, int[] dims) -> Tensor")
      .kernel([](const Tensor& x, at::IntArrayRef shifts, at::IntArrayRef dims) { return at::roll(x, shifts, dims); })
      .backward([](const BackwardContext& call, const ValueList&, const ValueList& grads) -> Gradients {
        auto back = call.get<std::vector<int64_t>>("shifts");
        for (int64_t& s : back) s = -s;
        return {{"x", at::roll(grads[0], back, call.get<std::vector<int64_t>>("dims"))}};
      })
      .linear_backward()
      .keep();

  // Integers and booleans in.
  custom_op("lab::pick(Tensor x, Tensor index, Tensor mask) -> Tensor")
      .kernel([](const Tensor& x, const Tensor& index, const Tensor& mask) {
        return at::where(mask, x.gather(0, index), 0.0);
      })
      .save_for_backward([](const Arguments& in, const ValueList&) -> Saved {
        return {in.tensor("index"), in.tensor("mask"), in.tensor("x").size(0)};
      })
      .backward([](const BackwardContext&, const ValueList& saved, const ValueList& grads) -> Gradients {
        const Tensor masked = at::where(saved[1], grads[0], 0.0);
        const Tensor zeros = at::zeros({saved.get<int64_t>(2)}, grads[0].options());
        return {{"x", zeros.scatter_add(0, saved[0], masked)}};
      })
      .linear_backward()
      .keep();

  custom_op("lab::solve(Tensor a, Tensor b) -> Tensor")
      .kernel([](const Tensor& a, const Tensor& b) { return at::linalg_solve(a, b); })
      .save_for_backward([](const Arguments& in, const ValueList& outs) -> Saved {
        return {in.tensor("a"), outs[0]};
      })
      .backward([](const BackwardContext&, const ValueList& saved, const ValueList& grads) -> Gradients {
        static const auto solve = custom_op("lab::solve").typed<Tensor(const Tensor&, const Tensor&)>();
        const Tensor of_b = solve(saved[0].mT(), grads[0]);
        return {{"a", -of_b.matmul(saved[1].mT())}, {"b", of_b}};
      })
      .linear_backward()
      .keep();

  // Scalars alone.
  custom_op("lab::steps(int n, float from, float by=1.0) -> Tensor")
      .kernel([](int64_t n, double from, double by) { return at::arange(n, at::kDouble) * by + from; })
      .keep();

  // One argument of which the derivative is declared zero.
  custom_op("lab::straight(Tensor x, Tensor noise) -> Tensor")
      .kernel([](const Tensor& x, const Tensor& noise) { return x + noise.sign(); })
      .backward([](const BackwardContext&, const ValueList&, const ValueList& grads) -> Gradients {
        return {{"x", grads[0]}};
      })
      .linear_backward()
      .no_gradient({"noise"})
      .keep();
}

// ---- rules that are not the derivatives of what is computed --------------------------------------------------------

void define_deliberate() {
  // x², with a derivative of 3x.
  custom_op("lab::said_3x(Tensor x) -> Tensor")
      .kernel([](const Tensor& x) { return x * x; })
      .save_for_backward(save_x)
      .backward([](const BackwardContext&, const ValueList& saved, const ValueList& grads) -> Gradients {
        return {{"x", 3 * saved[0] * grads[0]}};
      })
      .linear_backward()
      .keep();

  // The same by a kernel that reads memory.
  custom_op("lab::said_3x_raw(Tensor x) -> Tensor")
      .kernel(at::kCPU, [](const Tensor& x) { return through_pointers(x, [](double v) { return v * v; }); })
      .save_for_backward(save_x)
      .backward([](const BackwardContext&, const ValueList& saved, const ValueList& grads) -> Gradients {
        return {{"x", 3 * saved[0] * grads[0]}};
      })
      .linear_backward()
      .keep();

  // x², with a backward of 3x, a jvp of 5x and, for batches, a value of x² + 1000.
  custom_op("lab::said_many(Tensor x) -> Tensor")
      .kernel([](const Tensor& x) { return x * x; })
      .save_for_backward(save_x)
      .backward([](const BackwardContext&, const ValueList& saved, const ValueList& grads) -> Gradients {
        return {{"x", 3 * saved[0] * grads[0]}};
      })
      .jvp([](const CallContext&, const ValueList& saved, const Arguments& tangents) -> Tensors {
        return {5 * saved[0] * tangents.tensor("x")};
      })
      .vmap([](const VmapInfo&, const BatchDims& dims, const Tensor& x) { return std::pair(x * x + 1000, dims["x"]); })
      .keep();

  // The identity, whose gradients are clipped: not linear.
  custom_op("lab::clip_gradient(Tensor x, float limit) -> Tensor")
      .kernel([](const Tensor& x, double) { return x.clone(); })
      .save_for_backward([](const Arguments&, const ValueList&) { return Saved{}; })
      .backward([](const BackwardContext& call, const ValueList&, const ValueList& grads) -> Gradients {
        const double limit = call.get<double>("limit");
        return {{"x", grads[0].clamp(-limit, limit)}};
      })
      .keep();

  // Draws, and is differentiated as if it did not.
  custom_op("lab::jitter(Tensor x) -> Tensor")
      .kernel([](const Tensor& x) { return x + at::rand_like(x); })
      .save_for_backward([](const Arguments&, const ValueList&) { return Saved{}; })
      .backward([](const BackwardContext&, const ValueList&, const ValueList& grads) -> Gradients {
        return {{"x", 7 * grads[0]}};
      })
      .linear_backward()
      .keep();
}

}  // namespace

void define() {
  define_pointwise();
  define_structured();
  define_deliberate();
}

}  // namespace custom_ops
