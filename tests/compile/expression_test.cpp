// What is shared, computed ahead and left out of the graph of a lane's numbers, and what must not be.
#include "numbers/expression.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace {

using tower::compiler::Expressions;
using tower::compiler::Id;
using tower::compiler::Op;
using tower::compiler::Type;

class Expression : public testing::Test {
 protected:
  Id k(double value) { return g.constant(Type::f64, value); }
  Expressions g;
  const Id x = g.input(Type::f64, 0), y = g.input(Type::f64, 1), i = g.input(Type::i32, 2), b = g.input(Type::b1, 3);
};

TEST_F(Expression, EqualNodesAreOne) {
  EXPECT_EQ(g.make(Op::sub, x, y), g.make(Op::sub, x, y));
  EXPECT_NE(g.make(Op::sub, x, y), g.make(Op::sub, y, x));
  EXPECT_EQ(g.make(Op::add, x, y), g.make(Op::add, y, x));
  EXPECT_EQ(g.make(Op::mul, x, y), g.make(Op::mul, y, x));
  EXPECT_NE(k(0.0), k(-0.0));
  EXPECT_NE(g.constant(Type::f32, 1.0), k(1));
}

TEST_F(Expression, ConstantsAreComputedInTheirType) {
  EXPECT_EQ(g.make(Op::add, k(2), k(0.5)), k(2.5));
  const Id third = g.make(Op::div, g.constant(Type::f32, 1.0), g.constant(Type::f32, 3.0));
  EXPECT_EQ(g.value(third), static_cast<double>(1.0f / 3.0f));
  const Id largest = g.constant(Type::i32, int64_t{std::numeric_limits<int32_t>::max()});
  EXPECT_EQ(g.value(g.make(Op::add, largest, g.constant(Type::i32, int64_t{1}))), std::numeric_limits<int32_t>::min());
  EXPECT_EQ(g.make(Op::lt, k(1), k(2)), g.constant(Type::b1, int64_t{1}));
  EXPECT_EQ(g.cast(k(-2.7), Type::i32), g.constant(Type::i32, int64_t{-2}));
  EXPECT_EQ(g.make(Op::select, g.constant(Type::b1, int64_t{0}), x, y), y);
}

TEST_F(Expression, WhatChangesNoBitIsLeftOut) {
  EXPECT_EQ(g.make(Op::mul, x, k(1)), x);
  EXPECT_EQ(g.make(Op::div, x, k(1)), x);
  EXPECT_EQ(g.make(Op::add, x, k(-0.0)), x);
  EXPECT_EQ(g.make(Op::sub, x, k(0.0)), x);
  EXPECT_EQ(g.make(Op::mul, x, k(-1)), g.make(Op::neg, x));
  EXPECT_EQ(g.make(Op::neg, g.make(Op::neg, x)), x);
  EXPECT_EQ(g.make(Op::add, x, g.make(Op::neg, y)), g.make(Op::sub, x, y));
  EXPECT_EQ(g.make(Op::select, b, x, x), x);
  EXPECT_EQ(g.make(Op::add, i, g.constant(Type::i32, int64_t{0})), i);
  EXPECT_EQ(g.cast(g.cast(b, Type::f64), Type::b1), b);
  const Id yes = g.constant(Type::b1, int64_t{1});
  EXPECT_EQ(g.make(Op::bit_and, b, yes), b);
  EXPECT_EQ(g.make(Op::bit_xor, g.make(Op::bit_xor, b, yes), yes), b);
}

TEST_F(Expression, WhatChangesASignOrANaNStays) {
  EXPECT_NE(g.make(Op::add, x, k(0.0)), x);              // +0 of −0
  EXPECT_NE(g.make(Op::sub, x, k(-0.0)), x);             // +0 of −0
  EXPECT_EQ(g[g.make(Op::mul, x, k(0.0))].op, Op::mul);  // NaN of infinity
  EXPECT_EQ(g[g.make(Op::sub, x, x)].op, Op::sub);       // NaN of infinity
  EXPECT_EQ(g[g.make(Op::div, x, x)].op, Op::div);
  EXPECT_EQ(g[g.make(Op::eq, x, x)].op, Op::eq);                             // false of NaN
  EXPECT_EQ(g[g.make(Op::div, x, k(3))].op, Op::div);                        // not times a third
  EXPECT_NE(g.make(Op::neg, g.make(Op::sub, x, y)), g.make(Op::sub, y, x));  // −0 of equals
  EXPECT_NE(g.cast(g.cast(i, Type::f32), Type::i32), i);                     // rounded on the way
  EXPECT_EQ(g[g.cast(k(1e300), Type::i32)].op, Op::cast);                    // the machine's affair
}

TEST_F(Expression, PrintsWhatOutputsNeed) {
  const Id z = g.make(Op::add, g.make(Op::mul, x, k(0.5)), y);
  g.make(Op::exp, x);
  EXPECT_EQ(g.print({z}),
            "%0: f64 = input 0\n"
            "%1: f64 = input 1\n"
            "%4: f64 = constant 0.5\n"
            "%5: f64 = mul %0 %4\n"
            "%6: f64 = add %1 %5\n");
}

}  // namespace
