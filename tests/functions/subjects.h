// The functions of the database (function_db.cpp): each shows one thing that a rule, or a function with rules, can be.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <tower/function.h>
#include <tower/transforms.h>

namespace function_db {

using at::Tensor;
using tower::Context;
using tower::Function;
using tower::InDims;
using tower::VmapInfo;
using tower::dynamic::Tensors;

// ---- what is saved -------------------------------------------------------------------------------------------------

struct Cube : Function<Cube> {
  static constexpr bool linear_backward = true;
  static Tensor forward(const Tensor& x) { return x * x * x; }
  static void setup_context(Context& ctx, const std::tuple<Tensor>& inputs, const Tensor&) {
    ctx.save_for_backward({std::get<0>(inputs)});
  }
  static Tensor backward(Context& ctx, const Tensor& grad) { return 3 * ctx.saved_tensors()[0].square() * grad; }
};

// As in numpy_cube: the derivative is computed with the value, and saved.
struct CubeSavingItsDerivative : Function<CubeSavingItsDerivative> {
  static std::tuple<Tensor, Tensor> forward(const Tensor& x) { return {x * x * x, 3 * x * x}; }
  static void setup_context(Context& ctx, const std::tuple<Tensor>& inputs, const std::tuple<Tensor, Tensor>& outputs) {
    ctx.save_for_backward({std::get<0>(inputs), std::get<1>(outputs)});
    ctx.save_for_forward({std::get<0>(inputs), std::get<1>(outputs)});
  }
  static Tensor backward(Context& ctx, const Tensor& grad, const Tensor& grad_derivative) {
    const Tensors& saved = ctx.saved_tensors();
    return grad * saved[1] + 6 * grad_derivative * saved[0];
  }
  static std::tuple<Tensor, Tensor> jvp(Context& ctx, const Tensor& t) {
    const Tensors& saved = ctx.saved_tensors();
    return {t * saved[1], 6 * t * saved[0]};
  }
};

struct ExpSavingItsOutput : Function<ExpSavingItsOutput> {
  static constexpr bool linear_backward = true;
  static Tensor forward(const Tensor& x) { return at::exp(x); }
  static void setup_context(Context& ctx, const auto&, const Tensor& output) { ctx.save_for_backward({output}); }
  static Tensor backward(Context& ctx, const Tensor& grad) { return ctx.saved_tensors()[0] * grad; }
};

// LibTorch's shape; the intermediate is saved while forward runs.
struct LogisticInLibTorchsShape : Function<LogisticInLibTorchsShape> {
  static constexpr bool linear_backward = true;
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    const Tensor e = at::exp(x), y = e / (1 + e);
    ctx->save_for_backward({e, y});
    return y;
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const tensor_list saved = ctx->get_saved_variables();
    return {grads[0] * saved[1] / (1 + saved[0])};
  }
};

// The classical port: a linear layer with a bias that may be missing, and numbers in saved_data.
struct LinearInLibTorchsShape : Function<LinearInLibTorchsShape> {
  static constexpr bool linear_backward = true;
  static Variable forward(AutogradContext* ctx, Variable input, Variable weight, double scale, Variable bias) {
    ctx->save_for_backward({input, weight});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["bias"] = bias.defined();
    Tensor output = scale * at::matmul(input, weight.t());
    return bias.defined() ? output + bias : output;
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto saved = ctx->get_saved_variables();
    const double scale = ctx->saved_data["scale"].toDouble();
    const Tensor bias = ctx->saved_data["bias"].toBool() ? grads[0].sum(0) : Tensor();
    return {scale * at::matmul(grads[0], saved[1]), scale * at::matmul(grads[0].t(), saved[0]), Tensor(), bias};
  }
};

struct SavesTensorsByName : Function<SavesTensorsByName> {
  static Tensor forward(const Tensor& x, const Tensor& y) { return x * y * y; }
  static void setup_context(Context& ctx, const std::tuple<Tensor, Tensor>& inputs, const Tensor&) {
    ctx.saved_data["x"] = std::get<0>(inputs);
    ctx.saved_data["others"] = Tensors{std::get<1>(inputs), std::get<1>(inputs) * 2};
    ctx.saved_data["count"] = int64_t{1};
  }
  static std::tuple<Tensor, Tensor> backward(Context& ctx, const Tensor& grad) {
    const Tensor x = ctx.saved_data["x"].toTensor();
    const auto others = ctx.saved_data["others"].toTensorVector();
    return {grad * others[0] * others[0], ctx.saved_data["count"].toInt() * grad * x * others[1]};
  }
  static Tensor jvp(Context& ctx, const Tensor& dx, const Tensor& dy) {
    const Tensor x = ctx.saved_data["x"].toTensor(), y = ctx.saved_data["others"].toTensorVector()[0];
    return dx * y * y + 2 * x * y * dy;
  }
};

// ---- arguments and outputs -----------------------------------------------------------------------------------------

struct MulThatAsksWhatIsNeeded : Function<MulThatAsksWhatIsNeeded> {
  static constexpr bool linear_backward = true;
  static Tensor forward(const Tensor& x, const Tensor& y) { return x * y; }
  static void setup_context(Context& ctx, const std::tuple<Tensor, Tensor>& inputs, const Tensor&) {
    ctx.save_for_backward({std::get<0>(inputs), std::get<1>(inputs)});
  }
  static std::tuple<Tensor, Tensor> backward(Context& ctx, const Tensor& grad) {
    const Tensors& saved = ctx.saved_tensors();
    return {ctx.needs_input_grad(0) ? grad * saved[1] : Tensor(), ctx.needs_input_grad(1) ? grad * saved[0] : Tensor()};
  }
};

struct Matmul : Function<Matmul> {
  static constexpr bool linear_backward = true;
  static Tensor forward(const Tensor& a, const Tensor& b) { return at::matmul(a, b); }
  static void setup_context(Context& ctx, const std::tuple<Tensor, Tensor>& inputs, const Tensor&) {
    ctx.save_for_backward({std::get<0>(inputs), std::get<1>(inputs)});
  }
  static auto backward(Context& ctx, const Tensor& grad) {
    const Tensors& saved = ctx.saved_tensors();
    return std::tuple(at::matmul(grad, saved[1].t()), at::matmul(saved[0].t(), grad));
  }
};

struct Sort : Function<Sort> {
  static constexpr bool linear_backward = true;
  static std::tuple<Tensor, Tensor> forward(const Tensor& x, int64_t dim) { return at::sort(x, dim); }
  static void setup_context(Context& ctx, const std::tuple<Tensor, int64_t>& inputs, const auto& outputs) {
    ctx.save_for_backward({std::get<1>(outputs)});
    ctx.mark_non_differentiable({std::get<1>(outputs)});
    ctx.saved_data["dim"] = std::get<1>(inputs);
  }
  static auto backward(Context& ctx, const Tensor& grad, const Tensor&) {
    const Tensor order = ctx.saved_tensors()[0];
    return std::tuple(at::zeros_like(grad).scatter(ctx.saved_data["dim"].toInt(), order, grad), std::nullopt);
  }
};

struct Where : Function<Where> {
  static constexpr bool linear_backward = true;
  static Tensor forward(const Tensor& mask, const Tensor& x, const Tensor& y) { return at::where(mask, x, y); }
  static void setup_context(Context& ctx, const auto& inputs, const Tensor&) {
    ctx.save_for_backward({std::get<0>(inputs)});
  }
  static auto backward(Context& ctx, const Tensor& grad) {
    const Tensor mask = ctx.saved_tensors()[0];
    return std::tuple(std::nullopt, at::where(mask, grad, at::zeros_like(grad)),
                      at::where(mask, at::zeros_like(grad), grad));
  }
};

struct Polar {
  Tensor radius, angle;
  std::string unit;
};
constexpr auto tower_fields(const Polar&) { return std::tuple(&Polar::radius, &Polar::angle); }

// A struct as an output, with a static part; gradients come as the struct.
struct ToPolar : Function<ToPolar> {
  static constexpr bool linear_backward = true;
  static Polar forward(const std::pair<Tensor, Tensor>& xy) {
    return {at::sqrt(xy.first.square() + xy.second.square()), at::atan2(xy.second, xy.first), "radians"};
  }
  static void setup_context(Context& ctx, const std::tuple<std::pair<Tensor, Tensor>>& inputs, const Polar& out) {
    ctx.save_for_backward({std::get<0>(inputs).first, std::get<0>(inputs).second, out.radius});
  }
  static std::pair<Tensor, Tensor> backward(Context& ctx, const Polar& grad) {
    const Tensor x = ctx.saved_tensors()[0], y = ctx.saved_tensors()[1], r = ctx.saved_tensors()[2];
    return {grad.radius * x / r - grad.angle * y / (r * r), grad.radius * y / r + grad.angle * x / (r * r)};
  }
};

struct ListToList : Function<ListToList> {
  static constexpr bool linear_backward = true;
  static Tensors forward(const Tensors& xs) {
    Tensors ys;
    for (const Tensor& x : xs) ys.push_back(x.sin());
    return ys;
  }
  static void setup_context(Context& ctx, const std::tuple<Tensors>& inputs, const Tensors&) {
    ctx.save_for_backward(std::get<0>(inputs));
  }
  static Tensors backward(Context& ctx, const Tensors& grads) {
    Tensors result;
    for (size_t i = 0; i < grads.size(); ++i) result.push_back(grads[i] * ctx.saved_tensors()[i].cos());
    return result;
  }
};

const std::optional<Tensor> kNothing;

struct OptionalArgument : Function<OptionalArgument> {
  static constexpr bool linear_backward = true;
  static Tensor forward(const Tensor& x, const std::optional<Tensor>& shift) { return shift ? x * *shift : x * 1; }
  static void setup_context(Context& ctx, const std::tuple<Tensor, std::optional<Tensor>>& inputs, const Tensor&) {
    ctx.save_for_backward({std::get<0>(inputs)});
    if (std::get<1>(inputs)) ctx.saved_data["shift"] = *std::get<1>(inputs);
  }
  static std::tuple<Tensor, std::optional<Tensor>> backward(Context& ctx, const Tensor& grad) {
    if (ctx.saved_data.count("shift") == 0) return {grad, std::nullopt};
    return {grad * ctx.saved_data["shift"].toTensor(), grad * ctx.saved_tensors()[0]};
  }
};

struct StaticArguments : Function<StaticArguments> {
  static constexpr bool linear_backward = true;
  static Tensor forward(const Tensor& x, double a, const std::string& how, const Tensor& y) {
    return how == "product" ? a * x * y : a * x + y;
  }
  static void setup_context(Context& ctx, const auto& inputs, const Tensor&) {
    const auto& [x, a, how, y] = inputs;
    ctx.save_for_backward({x, y});
    ctx.saved_data["a"] = a;
    ctx.saved_data["how"] = how;
  }
  static auto backward(Context& ctx, const Tensor& grad) {
    const double a = ctx.saved_data["a"].toDouble();
    const Tensor x = ctx.saved_tensors()[0], y = ctx.saved_tensors()[1];
    const bool product = ctx.saved_data["how"].toStringRef() == "product";
    return std::tuple(product ? a * grad * y : a * grad, std::nullopt, std::nullopt, product ? a * grad * x : grad * 1);
  }
};

struct Sum : Function<Sum> {
  static constexpr bool linear_backward = true;
  static Tensor forward(const Tensor& x) { return (x * x).sum(); }
  static void setup_context(Context& ctx, const auto& inputs, const Tensor&) {
    ctx.save_for_backward({std::get<0>(inputs)});
  }
  static Tensor backward(Context& ctx, const Tensor& grad) { return 2 * grad * ctx.saved_tensors()[0]; }
};

struct ComplexSquare : Function<ComplexSquare> {
  static constexpr bool linear_backward = true;
  static Tensor forward(const Tensor& z) { return z * z; }
  static void setup_context(Context& ctx, const auto& inputs, const Tensor&) {
    ctx.save_for_backward({std::get<0>(inputs)});
  }
  static Tensor backward(Context& ctx, const Tensor& grad) { return 2 * ctx.saved_tensors()[0].conj() * grad; }
};

// ---- declared derivatives ------------------------------------------------------------------------------------------

struct ClampStraightThrough : Function<ClampStraightThrough> {
  static constexpr bool linear_backward = true;
  static Tensor forward(const Tensor& x) { return at::clamp(x, -0.5, 0.5); }
  static Tensor backward(Context&, const Tensor& grad) { return grad; }
};

struct ScaleGradient : Function<ScaleGradient> {
  static constexpr bool linear_backward = true;
  static Tensor forward(const Tensor& x, double) { return x; }
  static void setup_context(Context& ctx, const std::tuple<Tensor, double>& inputs, const Tensor&) {
    ctx.saved_data["scale"] = std::get<1>(inputs);
  }
  static auto backward(Context& ctx, const Tensor& grad) {
    return std::tuple(ctx.saved_data["scale"].toDouble() * grad, std::nullopt);
  }
};

// Not linear in the gradient: what a jvp would have to be, nobody says.
struct ClipGradient : Function<ClipGradient> {
  static Tensor forward(const Tensor& x) { return x.clone(); }
  static Tensor backward(Context&, const Tensor& grad) { return at::clamp(grad, -0.2, 0.2); }
};

struct NonDifferentiableOutput : Function<NonDifferentiableOutput> {
  static std::pair<Tensor, Tensor> forward(const Tensor& x) { return {x * x, 3 * x}; }
  static void setup_context(Context& ctx, const std::tuple<Tensor>& inputs, const std::pair<Tensor, Tensor>& outputs) {
    ctx.save_for_backward({std::get<0>(inputs)});
    ctx.mark_non_differentiable({outputs.second});
  }
  static Tensor backward(Context& ctx, const Tensor& grad, const Tensor& grad_of_constant) {
    return 2 * grad * ctx.saved_tensors()[0] + 100 * grad_of_constant;  // which is zero
  }
  static auto jvp(Context& ctx, const Tensor& t) { return std::pair(2 * t * ctx.saved_tensors()[0], 100 * t); }
};

// Undefined gradients arrive as such, and undefined ones are given back.
struct WithoutMaterializing : Function<WithoutMaterializing> {
  static std::array<Tensor, 2> forward(const Tensor& x, const Tensor& y) { return {x.sin(), y.cos()}; }
  static void setup_context(Context& ctx, const auto& inputs, const auto&) {
    ctx.save_for_backward({std::get<0>(inputs), std::get<1>(inputs)});
    ctx.set_materialize_grads(false);
  }
  static std::tuple<Tensor, Tensor> backward(Context& ctx, const Tensor& dx, const Tensor& dy) {
    const Tensors& saved = ctx.saved_tensors();
    return {dx.defined() ? dx * saved[0].cos() : Tensor(), dy.defined() ? -dy * saved[1].sin() : Tensor()};
  }
  static auto jvp(Context& ctx, const Tensor& dx, const Tensor& dy) {
    const Tensors& saved = ctx.saved_tensors();
    return std::array<Tensor, 2>{dx.defined() ? dx * saved[0].cos() : Tensor(),
                                 dy.defined() ? -dy * saved[1].sin() : Tensor()};
  }
};

struct OnceDifferentiable : Function<OnceDifferentiable> {
  static constexpr bool once_differentiable = true;
  static Tensor forward(const Tensor& x, const Tensor& y) { return x.sin() * y; }
  static void setup_context(Context& ctx, const auto& inputs, const Tensor&) {
    ctx.save_for_backward({std::get<0>(inputs), std::get<1>(inputs)});
  }
  static auto backward(Context& ctx, const Tensor& grad) {
    const Tensors& saved = ctx.saved_tensors();
    return std::tuple(grad * saved[0].cos() * saved[1], grad * saved[0].sin());
  }
};

struct ForwardModeOnly : Function<ForwardModeOnly> {
  static Tensor forward(const Tensor& x, const Tensor& y) { return at::sin(x * y); }
  static void setup_context(Context& ctx, const auto& inputs, const Tensor&) {
    ctx.save_for_forward({std::get<0>(inputs), std::get<1>(inputs)});
  }
  static Tensor jvp(Context& ctx, const Tensor& dx, const Tensor& dy) {
    const Tensors& saved = ctx.saved_tensors();
    return at::cos(saved[0] * saved[1]) * (dx * saved[1] + dy * saved[0]);
  }
};

struct WithoutRules : Function<WithoutRules> {
  static Tensor forward(const Tensor& x) { return x.sin() * x; }
};

// ---- what forward does ---------------------------------------------------------------------------------------------

struct ScaleInPlace : Function<ScaleInPlace> {
  static constexpr std::array mutates{0};
  static constexpr bool linear_backward = true;
  static Tensor forward(Tensor x, double by) { return x.mul_(by); }
  static void setup_context(Context& ctx, const std::tuple<Tensor, double>& inputs, const Tensor&) {
    ctx.mark_dirty({std::get<0>(inputs)});
    ctx.saved_data["by"] = std::get<1>(inputs);
  }
  static auto backward(Context& ctx, const Tensor& grad) {
    return std::tuple(grad * ctx.saved_data["by"].toDouble(), std::nullopt);
  }
};

// Writes to memory that it allocates, as code for plain tensors does.
struct WritesToItsOwnMemory : Function<WritesToItsOwnMemory> {
  static constexpr bool linear_backward = true;
  static Tensor forward(const Tensor& x) {
    Tensor y = at::empty_like(x);
    y.copy_(x);
    y.mul_(x);
    return y;
  }
  static void setup_context(Context& ctx, const auto& inputs, const Tensor&) {
    ctx.save_for_backward({std::get<0>(inputs)});
  }
  static Tensor backward(Context& ctx, const Tensor& grad) { return 2 * grad * ctx.saved_tensors()[0]; }
};

struct ReadsMemory : Function<ReadsMemory> {
  static constexpr bool linear_backward = true;
  static Tensor forward(const Tensor& given) {
    const Tensor x = given.cpu().contiguous();
    Tensor y = at::empty(x.sizes(), at::kDouble);
    const double* from = x.const_data_ptr<double>();
    double* to = y.mutable_data_ptr<double>();
    for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] * from[i] * from[i];
    return y.to(given.device());
  }
  static void setup_context(Context& ctx, const auto& inputs, const Tensor&) {
    ctx.save_for_backward({std::get<0>(inputs)});
  }
  static Tensor backward(Context& ctx, const Tensor& grad) { return 3 * grad * ctx.saved_tensors()[0].square(); }
};

// Of two others, in both directions; the second derivative of Cube's rule is theirs, too.
struct Nested : Function<Nested> {
  static constexpr bool linear_backward = true;
  static Tensor forward(const Tensor& x) { return Cube::apply(ExpSavingItsOutput::apply(x)); }
  static void setup_context(Context& ctx, const auto& inputs, const Tensor&) {
    ctx.save_for_backward({std::get<0>(inputs)});
  }
  static Tensor backward(Context& ctx, const Tensor& grad) {
    return 3 * grad * Cube::apply(ExpSavingItsOutput::apply(ctx.saved_tensors()[0]));
  }
};

// Its value is a gradient; its derivative is taken by vjp.
struct GradInside : Function<GradInside> {
  static constexpr bool linear_backward = true;
  static Tensor inner(const Tensor& x) {
    return tower::grad([](const Tensor& y) { return (y.sin() * y).sum(); })(x);
  }
  static Tensor forward(const Tensor& x) { return inner(x); }
  static void setup_context(Context& ctx, const auto& inputs, const Tensor&) {
    ctx.save_for_backward({std::get<0>(inputs)});
  }
  static Tensor backward(Context& ctx, const Tensor& grad) {
    return tower::vjp(inner, ctx.saved_tensors()[0]).second(grad);
  }
};

// A function object as an argument.
struct Twice : Function<Twice> {
  static Tensor forward(const Tensor& x, const auto& f) { return f(f(x)); }
};

// ---- batching rules ------------------------------------------------------------------------------------------------

struct WithVmapRule : Function<WithVmapRule> {
  static constexpr bool linear_backward = true;
  static Tensor forward(const Tensor& x, const Tensor& y) { return (x * y).sum(0); }
  static void setup_context(Context& ctx, const auto& inputs, const Tensor&) {
    ctx.save_for_backward({std::get<0>(inputs), std::get<1>(inputs)});
  }
  static auto backward(Context& ctx, const Tensor& grad) {
    const Tensors& saved = ctx.saved_tensors();
    return std::tuple(grad * saved[1], grad * saved[0]);
  }
  static std::pair<Tensor, int64_t> vmap(VmapInfo info, const InDims& in_dims, const Tensor& x, const Tensor& y) {
    auto in_front = [&](const Tensor& t, std::optional<int64_t> dim) {
      return dim ? t.movedim(*dim, 0) : t.unsqueeze(0).expand({info.batch_size, -1});
    };
    return {(in_front(x, in_dims[0]) * in_front(y, in_dims[1])).sum(1), 0};
  }
};

// A tree of out_dims, and a batch that is not in front.
struct VmapRuleOverTrees : Function<VmapRuleOverTrees> {
  static std::tuple<Tensor, Tensor> forward(const Tensors& xs, double by) { return {xs[0] * by, xs[1].sin()}; }
  static auto vmap(VmapInfo, const InDims& in_dims, const Tensors& xs, double by) {
    const auto& dims = in_dims.of(0);
    const Tensor second = dims[1] ? xs[1].movedim(*dims[1], -1) : xs[1];
    return std::pair(std::tuple(xs[0] * by, second.sin()),
                     tower::Axes{dims[0], dims[1] ? tower::Axes(-1) : tower::Axes(std::nullopt)});
  }
};

inline Tensor log1pexp(const Tensor& x) { return at::log1p(at::exp(x)); }

}  // namespace function_db
