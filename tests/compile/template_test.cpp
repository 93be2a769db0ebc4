// The templates that LLVM's IR is printed from (kernels/template.h).
#include "kernels/template.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace {

using tower::compiler::filled;
using tower::compiler::holes_of;
using tower::compiler::Type;

TEST(Templates, HolesAreNamesInBracesAndOtherBracesAreText) {
  EXPECT_EQ(filled("attributes #0 = { nounwind } {a}{b}{a} { {} {3} {a", {{"a", "x"}, {"b", "{a}"}}),
            "attributes #0 = { nounwind } x{a}x { {} {3} {a");
}

TEST(Templates, BeginWithTheirSecondLineAndTakeTheNearestHole) {
  EXPECT_EQ(filled("\n\n  {T}\n", {{"T", "mine"}}, {{"T", "common"}}), "\n  mine\n");
  EXPECT_EQ(filled("", {}), "");
}

TEST(Templates, NamesOfTheirOwnDifferByWhatFillsThem) {
  EXPECT_EQ(filled("%a~ = add i64 %a, %b~", {}, {}, ".7"), "%a.7 = add i64 %a, %b.7");
}

TEST(Templates, SpellVectorsOfAType) {
  EXPECT_EQ(filled("{L} {T} {V} {M} {memory} {B} {I} {S}", holes_of(Type::f32, 8)),
            "8 float <8 x float> v8f32 <8 x float> <8 x i1> <8 x i64> <8 x i32>");
  EXPECT_EQ(filled("{T} {V} {M} {memory}", holes_of(Type::b1, 4)), "i1 <4 x i1> v4i1 <4 x i8>");
}

TEST(Templates, AHoleForWhichThereIsNothingIsAnError) {
  try {
    filled("fadd {V} {x}", holes_of(Type::f64, 2));
    FAIL() << "nothing was thrown";
  } catch (const c10::Error& e) {
    EXPECT_NE(std::string(e.what()).find("nothing for {x} in the template fadd {V} {x}"), std::string::npos);
  }
}

}  // namespace
