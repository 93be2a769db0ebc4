// Every error says where it comes from, what was found and what to do, and leaves the thread as it was.
#include <torch/library.h>

#include <stdexcept>
#include <thread>

#include "support/prelude.h"
#include "tower/coverage.h"

namespace {

using tower::ArgumentError;
using tower::ConsumedError;
using tower::DerivativeError;
using tower::EscapedTensorError;
using tower::RandomnessError;
using tower::UnsupportedError;

Tensor squared_norm(const Tensor& x) { return (x * x).sum(); }
Tensors sum_of_all(const Tensors& in) {
  Tensor total = in[0].sum();
  for (size_t i = 1; i < in.size(); ++i) total = total + in[i].sum();
  return {total};
}

// Arguments of vmap.

TEST(ErrorsOfVmap, MappedSizesThatDifferAreNamedWithTheirArguments) {
  const auto text = refusal<ArgumentError>([] {
    td::vmap(sum_of_all, {0, 1, 0}, {0})({numbers({3, 2}), numbers({2, 4}), numbers({3})});
  });
  EXPECT_TRUE(says(text, {"vmap: ", "argument 0 has size 3 along dimension 0",
                          "argument 1 has size 4 along dimension 1", "argument 2 has size 3"}));
}

TEST(ErrorsOfVmap, AnInDimOutOfRangeIsNamedWithTheArgumentsShape) {
  for (const int64_t dim : {2, -3}) {
    const auto text = refusal<ArgumentError>([&] { td::vmap(sum_of_all, {dim}, {0})({numbers({3, 2})}); });
    EXPECT_TRUE(says(
        text, {"vmap: in_dim", std::to_string(dim).c_str(), "argument 0", "out of range", "2 dimensions", "[3, 2]"}));
  }
  EXPECT_TRUE(says(refusal<ArgumentError>([] { td::vmap(sum_of_all, {0}, {0})({at::ones({})}); }),
                   {"vmap: argument 0", "scalar", "Leave its in_dim empty"}));
  EXPECT_TRUE(says(refusal<ArgumentError>([] {
                     td::vmap(sum_of_all, {0, 0}, {0})({numbers({3})});
                   }),
                   {"vmap: in_dims has 2 entries", "1 arguments"}));
  EXPECT_TRUE(says(refusal<ArgumentError>([] { td::vmap(sum_of_all, {0}, {0})({Tensor()}); }),
                   {"vmap: argument 0", "undefined"}));
}

TEST(ErrorsOfVmap, NothingToMapIsRefused) {
  const auto text = refusal<ArgumentError>([] { td::vmap(sum_of_all, {std::nullopt}, {0})({numbers({3})}); });
  EXPECT_TRUE(says(text, {"vmap: nothing to map", "in_dim"}));
  EXPECT_TRUE(says(refusal<ArgumentError>([] { td::vmap(sum_of_all, {}, {0})({}); }), {"vmap: nothing to map"}));
}

TEST(ErrorsOfVmap, AnOutputThatDiffersBetweenExamplesNeedsAnOutDim) {
  const auto text = refusal<ArgumentError>([] { td::vmap(sum_of_all, {0}, {std::nullopt})({numbers({3, 2})}); });
  EXPECT_TRUE(says(text, {"vmap (level 1): output 0 differs between examples", "out_dim"}));
}

TEST(ErrorsOfVmap, OutDimsThatDoNotFitAreRefused) {
  EXPECT_TRUE(says(refusal<ArgumentError>([] {
                     td::vmap(sum_of_all, {0}, {1})({numbers({3, 2})});
                   }),
                   {"vmap (level 1): out_dim 1 of output 0", "out of range", "1 dimensions"}));
  EXPECT_TRUE(says(refusal<ArgumentError>([] {
                     td::vmap(sum_of_all, {0}, {0, 0})({numbers({3, 2})});
                   }),
                   {"vmap: out_dims has 2 entries", "1 outputs"}));
}

TEST(ErrorsOfVmap, AChunkSizeMustBePositive) {
  const auto text = refusal<ArgumentError>([] {
    td::vmap(sum_of_all, {0}, {0}, {.chunk_size = 0})({numbers({3, 2})});
  });
  EXPECT_TRUE(says(text, {"vmap: chunk_size is 0", "positive"}));
}

// What functions return.

TEST(ErrorsOfOutputs, UndefinedTensorsAreRefusedByEveryTransform) {
  const auto nothing = [](const Tensors&) { return Tensors{Tensor()}; };
  const Tensors x{numbers({3})};
  EXPECT_TRUE(says(refusal<ArgumentError>([&] { td::vmap(nothing, {0}, {0})(x); }), {"vmap: output 0", "undefined"}));
  EXPECT_TRUE(says(refusal<ArgumentError>([&] { td::grad(nothing, {0})(x); }), {"grad: output 0", "undefined"}));
  EXPECT_TRUE(says(refusal<ArgumentError>([&] { td::vjp(nothing, x); }), {"vjp: output 0", "undefined"}));
  EXPECT_TRUE(says(refusal<ArgumentError>([&] { td::jvp(nothing, x, x); }), {"jvp: output 0", "undefined"}));
  EXPECT_TRUE(says(refusal<ArgumentError>([&] { td::linearize(nothing, x); }), {"linearize: output 0", "undefined"}));
}

TEST(ErrorsOfOutputs, GradNeedsARealScalar) {
  const auto message = [](Function f) { return refusal<DerivativeError>([&] { td::grad(f, {0})({numbers({3})}); }); };
  EXPECT_TRUE(says(message(of_one([](const Tensor& x) { return x * x; })), {"grad: ", "scalar", "[3]", "jacrev"}));
  EXPECT_TRUE(says(message(of_one([](const Tensor& x) { return x.sum(0, true); })), {"grad: ", "scalar", "[1]"}));
  EXPECT_TRUE(says(message(of_one([](const Tensor& x) { return x.argmax(); })), {"grad: ", "floating point", "Long"}));
  EXPECT_TRUE(says(message(of_one([](const Tensor& x) { return x.sum() > 0; })), {"grad: ", "floating point", "Bool"}));
  EXPECT_TRUE(says(message(of_one([](const Tensor& x) { return at::complex(x.sum(), x.sum()); })),
                   {"grad: ", "real", "ComplexDouble", "real part"}));
  EXPECT_TRUE(
      says(refusal<ArgumentError>([] { td::grad([](const Tensors&) { return Tensors{}; }, {0})({numbers({3})}); }),
           {"grad: ", "returned nothing"}));
}

// Arguments of the derivatives.

TEST(ErrorsOfDerivatives, IntegerPrimalsAreRefused) {
  const Tensors x{at::arange(3)};
  const Function f = sum_of_all;
  EXPECT_TRUE(
      says(refusal<DerivativeError>([&] { td::grad(f, {0})(x); }), {"grad: argument 0", "Long", "floating point"}));
  EXPECT_TRUE(says(refusal<DerivativeError>([&] { td::vjp(f, x); }), {"vjp: argument 0", "Long"}));
  EXPECT_TRUE(says(refusal<DerivativeError>([&] { td::jvp(f, x, {at::ones(3)}); }), {"jvp: primal 0", "Long"}));
  EXPECT_TRUE(says(refusal<DerivativeError>([&] { td::linearize(f, x); }), {"linearize: argument 0", "Long"}));
  EXPECT_TRUE(says(refusal<DerivativeError>([&] { td::jacrev(f, {0})(x); }), {"jacrev: argument 0", "Long"}));
  EXPECT_TRUE(says(refusal<DerivativeError>([&] { td::jacfwd(f, {0})(x); }), {"jacfwd: argument 0", "Long"}));
  EXPECT_TRUE(says(refusal<DerivativeError>([&] { td::hessian(f, {0})(x); }), {"argument 0", "Long"}));
  EXPECT_TRUE(says(refusal<DerivativeError>([&] { td::hvp(f, x, {at::ones(3)}); }), {"hvp: primal 0", "Long"}));
  EXPECT_TRUE(says(refusal<DerivativeError>([&] {
                     td::grad(f, {1})({numbers({3}), at::ones(3) > 0});
                   }),
                   {"grad: argument 1", "Bool"}));
}

TEST(ErrorsOfDerivatives, ArgumentNumbersMustExistOnce) {
  const Tensors x{numbers({3})};
  EXPECT_TRUE(
      says(refusal<ArgumentError>([&] { td::grad(sum_of_all, {1})(x); }), {"grad: argument number 1", "out of range"}));
  EXPECT_TRUE(says(refusal<ArgumentError>([&] {
                     td::grad(sum_of_all, {0, -1})(x);
                   }),
                   {"grad: argument number 0", "twice"}));
  EXPECT_TRUE(says(refusal<ArgumentError>([&] { td::grad(sum_of_all, {})(x); }), {"grad: no argument"}));
  EXPECT_TRUE(says(refusal<ArgumentError>([&] { td::jacfwd(sum_of_all, {-2})(x); }), {"jacfwd: argument number -2"}));
}

TEST(ErrorsOfDerivatives, TangentsMustBeLikeTheirPrimals) {
  const Function f = of_one(squared_norm);
  const Tensors x{numbers({3})};
  const Function pushforward = td::linearize(f, x).second;
  const Tensor wrong_device = at::empty({3}, at::dtype(at::kDouble).device(at::kMeta));
  const auto both = [&](const Tensors& tangents, std::initializer_list<const char*> parts) {
    EXPECT_TRUE(says(refusal<ArgumentError>([&] { td::jvp(f, x, tangents); }), {"jvp: "}));
    EXPECT_TRUE(says(refusal<ArgumentError>([&] { td::jvp(f, x, tangents); }), parts));
    EXPECT_TRUE(says(refusal<ArgumentError>([&] { td::hvp(f, x, tangents); }), {"hvp: "}));
    EXPECT_TRUE(says(refusal<ArgumentError>([&] { td::hvp(f, x, tangents); }), parts));
    EXPECT_TRUE(says(refusal<ArgumentError>([&] { pushforward(tangents); }), {"linearize: "}));
    EXPECT_TRUE(says(refusal<ArgumentError>([&] { pushforward(tangents); }), parts));
  };
  both({numbers({2})}, {"tangent 0", "[2]", "expected the shape of", "[3]"});
  both({numbers({3, 1})}, {"tangent 0", "[3, 1]", "expected the shape of"});
  both({at::ones({3}, at::kFloat)}, {"tangent 0", "Float", "expected the dtype of", "Double"});
  both({wrong_device}, {"tangent 0", "device meta", "expected cpu"});
  both({}, {"0 tangents"});
  EXPECT_TRUE(same(pushforward({vec({1, 0, 1})})[0], at::full({}, 8.0, at::kDouble)));
}

TEST(ErrorsOfDerivatives, CotangentsMustBeLikeTheirOutputs) {
  const auto f = [](const Tensors& in) { return Tensors{in[0] * in[0], in[0].argmax()}; };
  const auto [y, pullback] = td::vjp(f, {numbers({3})});
  const auto refused = [&pullback = pullback](const Tensors& cotangents) {
    return refusal<ArgumentError>([&] { pullback(cotangents); });
  };
  EXPECT_TRUE(says(refused({numbers({2}), {}}), {"vjp: cotangent 0", "[2]", "expected the shape of", "[3]"}));
  EXPECT_TRUE(
      says(refused({at::ones({3}, at::kFloat), {}}), {"vjp: cotangent 0", "Float", "expected the dtype of", "Double"}));
  EXPECT_TRUE(says(refused({at::empty({3}, at::dtype(at::kDouble).device(at::kMeta)), {}}),
                   {"vjp: cotangent 0", "device meta", "expected cpu"}));
  EXPECT_TRUE(says(refused({numbers({3})}), {"vjp: the pullback was given 1 cotangents", "2 outputs"}));
  EXPECT_TRUE(says(refusal<DerivativeError>([&pullback = pullback] {
                     pullback({numbers({3}), at::ones({}, at::kLong)});
                   }),
                   {"vjp: ", "output 1", "Long", "no derivative"}));
  EXPECT_TRUE(same(pullback({vec({1, 1, 0}), {}})[0], vec({2, 4, 0})));
}

TEST(ErrorsOfDerivatives, AConsumedPullbackSaysSo) {
  const auto [y, pullback] = td::vjp(of_one(squared_norm), {numbers({3})}, {.consume = true});
  const Tensors one{at::ones({}, at::kDouble)};
  EXPECT_TRUE(same(pullback(one)[0], vec({2, 4, 6})));
  const auto text = refusal<ConsumedError>([&pullback = pullback, &one] { pullback(one); });
  EXPECT_TRUE(says(text, {"vjp: this pullback freed", "first time", "can be called again"}));
}

// What a batch has no single answer for.

TEST(ErrorsOfBatches, OneNumberCannotBeReadFromABatch) {
  const Tensors x{numbers({3})};
  const auto item = of_one([](const Tensor& v) { return v * v.item<double>(); });
  const auto branch = of_one([](const Tensor& v) { return (v > 1).is_nonzero() ? v : -v; });
  const auto compare = of_one([](const Tensor& v) { return at::equal(v, at::ones_like(v)) ? v : -v; });
  EXPECT_TRUE(says(refusal<UnsupportedError>([&] { td::vmap(item, {0}, {0})(x); }),
                   {"vmap (level 1): aten::_local_scalar_dense is not supported", "item()", "where()"}));
  EXPECT_TRUE(says(refusal<UnsupportedError>([&] { td::vmap(branch, {0}, {0})(x); }),
                   {"vmap (level 1): aten::", "bool", "where()"}));
  EXPECT_TRUE(says(refusal<UnsupportedError>([&] { td::vmap(compare, {0}, {0})(x); }),
                   {"vmap (level 1): aten::equal", "eq().all()"}));
  // The level that holds the batch is named, however deep the function is.
  const auto inside = td::grad(of_one([&](const Tensor& v) { return td::grad(item, {0})({v})[0]; }), {0});
  EXPECT_TRUE(says(refusal<UnsupportedError>([&] { td::vmap(inside, {0}, {0})(x); }), {"vmap (level 1)", "item()"}));
}

TEST(ErrorsOfBatches, AMaskOfAnotherSizeIsNotBroadcast) {
  const auto put = of_one(
      [](const Tensor& v) { return at::index_put(at::zeros({3}, at::kDouble), {v > 0}, at::ones({}, at::kDouble)); });
  EXPECT_THROW(put({numbers({1})}), c10::Error);
  EXPECT_EQ(refusal<std::exception>([&] {
              td::vmap(put, {0}, {0})({numbers({2, 1})});
            }).find("nothing of that type"),
            std::string::npos);
  EXPECT_TRUE(same(td::vmap(put, {0}, {0})({numbers({2, 3})})[0], at::ones({2, 3}, at::kDouble)));
}

TEST(ErrorsOfBatches, OneBoolCanBeReadWhereAllExamplesAgree) {
  const Tensors x{numbers({3, 2})};
  const auto same_shape = of_one([](const Tensor& v) { return at::equal(v, v.clone()) ? v * 2 : v; });
  EXPECT_TRUE(same(td::vmap(same_shape, {0}, {0})(x)[0], x[0] * 2));
  const auto other_shape = of_one([](const Tensor& v) { return at::equal(v, v.unsqueeze(0)) ? v * 2 : v; });
  EXPECT_TRUE(same(td::vmap(other_shape, {0}, {0})(x)[0], x[0]));
  const auto in_range = of_one([](const Tensor& v) { return v.abs().lt(1e9).all().is_nonzero() ? v * 2 : v; });
  EXPECT_TRUE(same(td::vmap(in_range, {0}, {0})(x)[0], x[0] * 2));
  EXPECT_TRUE(same(td::vmap(td::vmap(in_range, {0}, {0}), {0}, {0})({numbers({2, 3, 2})})[0], numbers({2, 3, 2}) * 2));
  // The inner level has one answer for each example of the outer one, and those differ.
  const auto first_row = of_one([](const Tensor& v) {
    return td::vmap(of_one([](const Tensor& e) { return e.lt(2).is_nonzero() ? e : -e; }), {0}, {0})({v})[0];
  });
  const Tensors rows{at::tensor({0.0, 1.0, 5.0, 6.0}).view({2, 2})};
  EXPECT_TRUE(says(refusal<UnsupportedError>([&] { td::vmap(first_row, {0}, {0})(rows); }),
                   {"vmap (level 1): aten::", "differs between the examples"}));
}

TEST(ErrorsOfBatches, OneNumberCanBeReadFromAConstantAndAlongDerivatives) {
  const auto item = of_one([](const Tensor& v) {
    const double two = at::full({}, 2.0, at::kDouble).item<double>();
    return v * two;
  });
  EXPECT_TRUE(same(td::vmap(item, {0}, {0})({vec({1, 2})})[0], vec({2, 4})));
  const auto branch = of_one([](const Tensor& v) { return v.item<double>() > 1 ? v * v : -v; });
  EXPECT_TRUE(same(td::grad(branch, {0})({at::full({}, 3.0, at::kDouble)})[0], at::full({}, 6.0, at::kDouble)));
}

TEST(ErrorsOfBatches, ShapesThatDependOnDataAreRefused) {
  const Tensors x{numbers({2, 3}) - 2};
  const auto refused = [&](auto f) { return refusal<UnsupportedError>([&] { td::vmap(of_one(f), {0}, {0})(x); }); };
  EXPECT_TRUE(says(refused([](const Tensor& v) { return v.nonzero(); }), {"vmap (level 1): aten::nonzero"}));
  EXPECT_TRUE(says(refused([](const Tensor& v) { return v.masked_select(v > 0); }),
                   {"vmap (level 1): aten::masked_select", "where()"}));
  EXPECT_TRUE(
      says(refused([](const Tensor& v) { return std::get<0>(at::_unique(v)); }), {"vmap (level 1): aten::_unique"}));
  EXPECT_TRUE(says(refused([](const Tensor& v) { return std::get<0>(at::unique_dim(v, 0)); }),
                   {"vmap (level 1): aten::unique_dim"}));
  EXPECT_TRUE(says(refused([](const Tensor& v) { return v.index({v > 0}); }), {"vmap (level 1): aten::"}));
}

TEST(ErrorsOfBatches, RandomOperatorsAreRefusedUnlessAModeIsChosen) {
  const Tensors x{numbers({2, 3})};
  const auto refused = [&](auto f) { return refusal<RandomnessError>([&] { td::vmap(of_one(f), {0}, {0})(x); }); };
  EXPECT_TRUE(says(refused([](const Tensor& v) { return v + at::rand({3}); }),
                   {"vmap (level 1): aten::rand", "random numbers", "Randomness::different", "Randomness::same"}));
  EXPECT_TRUE(says(refused([](const Tensor& v) { return at::randn_like(v); }), {"vmap (level 1): aten::randn_like"}));
  EXPECT_TRUE(
      says(refused([](const Tensor& v) { return at::bernoulli(v / 10); }), {"vmap (level 1): aten::bernoulli"}));
  EXPECT_TRUE(says(refused([](const Tensor& v) { return at::dropout(v, 0.5, true); }),
                   {"vmap (level 1): aten::", "random numbers"}));
  EXPECT_TRUE(
      says(refused([](const Tensor& v) { return at::multinomial(v, 1); }), {"vmap (level 1): aten::multinomial"}));
  EXPECT_TRUE(says(refused([](const Tensor& v) { return v + at::randperm(3); }), {"vmap (level 1): aten::randperm"}));
  EXPECT_TRUE(
      says(refused([](const Tensor& v) { return at::zeros_like(v).normal_(); }), {"vmap (level 1): aten::normal"}));
  // No example is spoken of in a gradient alone.
  const auto noisy = of_one([](const Tensor& v) { return (v * at::rand({3}, at::kDouble).add(1)).sum(); });
  EXPECT_TRUE(td::grad(noisy, {0})({numbers({3})})[0].ge(1).all().item<bool>());
}

// Tensors of a transform where they do not belong.

TEST(EscapedTensors, AreRefusedByNameAfterTheirTransformEnded) {
  Tensor kept;
  const auto keep = of_one([&](const Tensor& v) {
    kept = v * 2;
    return kept.sum();
  });
  const auto use = [&] { return refusal<EscapedTensorError>([&] { kept + 1; }); };
  td::vmap(keep, {0}, {0})({numbers({2, 3})});
  EXPECT_TRUE(says(use(), {"vmap (level 1): aten::add", "after the vmap", "has ended", "Return the tensor"}));
  td::grad(keep, {0})({numbers({3})});
  EXPECT_TRUE(says(use(), {"grad (level 1): aten::add", "after the grad", "has ended"}));
  td::jvp(keep, {numbers({3})}, {numbers({3})});
  EXPECT_TRUE(says(use(), {"jvp (level 1): aten::add", "after the jvp", "has ended"}));
  td::vmap(td::grad(keep, {0}), {0}, {0})({numbers({2, 3})});
  EXPECT_TRUE(says(use(), {"grad (level 2): aten::add", "has ended"}));
}

TEST(EscapedTensors, AreRefusedByALaterTransformAtTheSameDepth) {
  Tensor kept;
  const auto keep = of_one([&](const Tensor& v) { return kept = v * 2; });
  const auto use = of_one([&](const Tensor& v) { return v + kept; });
  td::vmap(keep, {0}, {0})({vec({1, 2})});
  EXPECT_TRUE(says(refusal<EscapedTensorError>([&] {
                     td::vmap(use, {0}, {0})({vec({3, 4})});
                   }),
                   {"vmap (level 1)", "has ended"}));
  td::vjp(keep, {vec({1, 2})});
  EXPECT_TRUE(says(refusal<EscapedTensorError>([&] { td::vjp(use, {vec({3, 4})}); }), {"vjp (level 1)", "has ended"}));
  td::jvp(keep, {vec({1, 2})}, {vec({1, 2})});
  EXPECT_TRUE(says(refusal<EscapedTensorError>([&] {
                     td::jvp(use, {vec({3, 4})}, {vec({3, 4})});
                   }),
                   {"jvp (level 1)", "has ended"}));
}

TEST(EscapedTensors, AreRefusedAsReturnsOfALaterTransform) {
  Tensor kept;
  td::vmap(of_one([&](const Tensor& v) { return kept = v * 2; }), {0}, {0})({vec({1, 2})});
  const auto text = refusal<EscapedTensorError>([&] {
    td::vmap(of_one([&](const Tensor&) { return kept; }), {0}, {0})({vec({3, 4})});
  });
  EXPECT_TRUE(says(text, {"vmap (level 1)", "has ended"}));
}

TEST(EscapedTensors, ThatAreConstantsAreAsGoodAsPlainOnes) {
  Tensor kept;
  td::vmap(of_one([&](const Tensor& v) {
             kept = at::ones({2}, at::kDouble) * 3;
             return v;
           }),
           {0}, {0})({vec({1, 2})});
  EXPECT_TRUE(same(kept + 1, vec({4, 4})));
  support::expect_intact();
}

TEST(EscapedTensors, AreRefusedOnAnotherThread) {
  const auto on_another_thread = [](const Tensor& v) {
    std::string text;
    std::thread([&] { text = refusal<EscapedTensorError>([&] { v + 1; }); }).join();
    EXPECT_TRUE(says(text, {"(level 1): aten::add", "on another thread"}));
    return v.sum();
  };
  EXPECT_TRUE(same(td::grad(of_one(on_another_thread), {0})({vec({1, 2})})[0], vec({1, 1})));
  EXPECT_TRUE(same(td::vmap(of_one(on_another_thread), {0}, {0})({vec({1, 2})})[0], vec({1, 2})));
  support::expect_intact();
}

TEST(RawData, OfATrackedTensorIsRefusedWithASentence) {
  const auto reads = of_one([](const Tensor& v) {
    EXPECT_GT(v.dim(), 0);
    return v * *v.const_data_ptr<double>();
  });
  const auto writes = of_one([](const Tensor& v) {
    v.mutable_data_ptr<double>()[0] = 7;
    return v;
  });
  const auto walks = of_one([](const Tensor& v) { return v * v.accessor<double, 1>()[0]; });
  const auto storage = of_one([](const Tensor& v) {
    v.storage().data();
    return v;
  });
  for (const Function& f : {Function(reads), Function(writes), Function(walks), Function(storage)}) {
    const auto level_says = [](const std::string& text, const char* level) {
      return says(text, {level, "raw memory", "Use operators"});
    };
    EXPECT_TRUE(level_says(refusal<c10::Error>([&] { td::vmap(f, {0}, {0})({numbers({2, 3})}); }), "vmap (level 1)"));
    EXPECT_TRUE(level_says(refusal<c10::Error>([&] { td::jvp(f, {numbers({3})}, {numbers({3})}); }), "jvp (level 1)"));
    EXPECT_TRUE(level_says(refusal<c10::Error>([&] { td::vjp(f, {numbers({3})}); }), "vjp (level 1)"));
  }
}

TEST(RawData, OfAConstantIsThere) {
  const auto f = of_one([](const Tensor& v) {
    const Tensor c = at::full({2}, 5.0, at::kDouble);
    EXPECT_EQ(c.const_data_ptr<double>()[1], 5);
    EXPECT_EQ((c.accessor<double, 1>()[0]), 5);
    c.mutable_data_ptr<double>()[0] = 7;
    return v * c;
  });
  EXPECT_TRUE(same(td::vmap(f, {0}, {0})({numbers({2, 2})})[0], numbers({2, 2}) * vec({7, 5})));
  EXPECT_TRUE(same(td::vjp(f, {vec({1, 2})}).second({vec({1, 1})})[0], vec({7, 5})));
}

TEST(TensorsThatTransformsCannotCarry, AreRefused) {
  const Tensor sparse = at::eye(3, at::kDouble).to_sparse(),
               quantized = at::quantize_per_tensor(at::ones({3}), 0.1, 0, at::kQInt8);
  const Function f = sum_of_all;
  EXPECT_TRUE(says(refusal<UnsupportedError>([&] { td::vmap(f, {0}, {0})({sparse}); }),
                   {"vmap: argument 0", "sparse", "dense"}));
  EXPECT_TRUE(
      says(refusal<UnsupportedError>([&] { td::vmap(f, {0}, {0})({quantized}); }), {"vmap: argument 0", "quantized"}));
  EXPECT_TRUE(says(refusal<UnsupportedError>([&] { td::grad(f, {0})({sparse}); }), {"grad: argument 0", "sparse"}));
  EXPECT_TRUE(says(refusal<UnsupportedError>([&] { td::jvp(f, {sparse}, {sparse}); }), {"jvp: primal 0", "sparse"}));
  const auto makes = of_one([&](const Tensor&) { return sparse; });
  EXPECT_TRUE(says(refusal<UnsupportedError>([&] { td::vmap(makes, {0}, {0})({numbers({3})}); }),
                   {"vmap: output 0", "sparse"}));
}

// Exceptions of the user's.

struct UsersError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST(ExceptionsOfTheUsersFunction, PassThroughThreeLevelsOfAnyKind) {
  const Function thrower = [](const Tensors& in) -> Tensors {
    const Tensor partly = (in[0] * in[0]).sum();
    throw UsersError("mine " + std::to_string(partly.dim()));
  };
  using Transform = std::function<Function(Function)>;
  const std::vector<Transform> transforms = {
      [](Function f) { return td::vmap(std::move(f), {0}, {0}); },
      [](Function f) { return td::grad(std::move(f), {0}); },
      [](Function f) { return Function([f](const Tensors& in) { return td::jvp(f, in, in).second; }); },
      [](Function f) { return Function([f](const Tensors& in) { return td::linearize(f, in).first; }); },
      [](Function f) { return td::jacfwd(std::move(f), {0}); },
  };
  for (const auto& outer : transforms)
    for (const auto& middle : transforms)
      for (const auto& inner : transforms)
        EXPECT_TRUE(says(refusal<UsersError>([&] {
                           outer(middle(inner(thrower)))({numbers({2, 2, 2})});
                         }),
                         {"mine 0"}));
}

TEST(ExceptionsOfTheUsersFunction, CaughtInsideLeaveTheOuterLevelsRunning) {
  const auto f = of_one([](const Tensor& x) {
    EXPECT_THROW(td::grad(of_one([&](const Tensor& y) -> Tensor {
                            const Tensor z = y * x;
                            throw UsersError(std::to_string(z.dim()));
                          }),
                          {0})({x}),
                 UsersError);
    return (x * x).sum();
  });
  EXPECT_TRUE(same(td::vmap(td::grad(f, {0}), {0}, {0})({numbers({2, 3})})[0], 2 * numbers({2, 3})));
  support::expect_intact();
}

TEST(ExceptionsOfTheUsersFunction, KernelErrorsPassThroughAsTheyAre) {
  const auto f = of_one([](const Tensor& x) { return at::mm(x, at::ones({5, 5}, at::kDouble)).sum(); });
  EXPECT_TRUE(says(refusal<c10::Error>([&] {
                     td::vmap(td::grad(f, {0}), {0}, {0})({numbers({2, 2, 2})});
                   }),
                   {"2", "5"}));
}

// Operators that nobody has a derivative for. The kernel adds one.

Tensor without_derivative(const Tensor& x) {
  const Tensor y = at::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i)
    y.mutable_data_ptr<double>()[i] = x.contiguous().const_data_ptr<double>()[i] + 1;
  return y;
}

TORCH_LIBRARY(tower_errors_test, m) { m.def("without_derivative(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(tower_errors_test, CPU, m) { m.impl("without_derivative", without_derivative); }

Tensor call_without_derivative(const Tensor& x) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tower_errors_test::without_derivative", "")
                             .typed<Tensor(const Tensor&)>();
  return op.call(x);
}

TEST(OperatorsWithoutADerivative, AreAnErrorNotAZero) {
  const auto f = of_one([](const Tensor& x) { return call_without_derivative(x).sum(); });
  const Tensors x{numbers({3})};
  const char* name = "no derivative is known for tower_errors_test::without_derivative";
  EXPECT_TRUE(
      says(refusal<DerivativeError>([&] { td::grad(f, {0})(x); }), {name, "Register a derivative", "detach()"}));
  EXPECT_TRUE(says(refusal<DerivativeError>([&] { td::jvp(f, x, x); }), {"jvp", name, "Register a derivative"}));
  EXPECT_TRUE(says(refusal<DerivativeError>([&] { td::linearize(f, x).second(x); }), {name}));
  EXPECT_TRUE(says(refusal<DerivativeError>([&] { td::vmap(td::grad(f, {0}), {0}, {0})({numbers({2, 3})}); }), {name}));
  EXPECT_TRUE(says(
      refusal<DerivativeError>([&] {
        td::grad(of_one([&](const Tensor& v) { return td::vmap(f, {0}, {0})({v})[0].sum(); }), {0})({numbers({2, 3})});
      }),
      {name}));
  const auto detached = of_one([](const Tensor& v) { return (v * call_without_derivative(v.detach())).sum(); });
  EXPECT_TRUE(same(td::grad(detached, {0})(x)[0], numbers({3}) + 1));
}

TEST(OperatorsWithoutABatchingRule, CanBeMadeAnError) {
  struct Restore {
    bool before;
    ~Restore() { tower::set_fallback_is_error(before); }
  } restore{tower::set_fallback_is_error(true)};
  const auto text = refusal<UnsupportedError>([&] {
    td::vmap(of_one(call_without_derivative), {0}, {0})({numbers({2, 3})});
  });
  EXPECT_TRUE(says(text, {"vmap (level 1): tower_errors_test::without_derivative", "no batching rule"}));
}

}  // namespace
