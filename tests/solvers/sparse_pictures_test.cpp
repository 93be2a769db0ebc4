// Patterns printed and drawn.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/sparse.h>

#include <sstream>
#include <string>

namespace {

using tower::Sparsity;

std::string printed(const Sparsity& pattern) { return (std::ostringstream() << pattern).str(); }

int64_t count(const std::string& text, const std::string& what) {
  int64_t found = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; ++at) ++found;
  return found;
}

TEST(SparsityPictures, HaveALineForEachRow) {
  const Sparsity arrow = Sparsity::of(at::eye(3, 4) + at::ones({3, 1}) * at::eye(1, 4));
  EXPECT_EQ(printed(arrow), "3 × 4, 5 entries\n*...\n**..\n*.*.\n");
  EXPECT_EQ(printed(Sparsity::of(at::zeros({0, 5}))), "0 × 5, 0 entries\n");
  EXPECT_EQ(printed(Sparsity::of(at::zeros({2, 0}))), "2 × 0, 0 entries\n\n\n");
}

TEST(SparsityPictures, OfLargePatternsAreInBlocks) {
  const std::string text = printed(Sparsity::of(at::eye(200)));
  EXPECT_EQ(text.find("200 × 200, 200 entries; each character is a block of 4 × 4\n*...."), 0);
  EXPECT_EQ(count(text, "\n"), 51);
  EXPECT_EQ(count(text, "*"), 50);
}

TEST(SparsityPictures, AreDrawnWithASquareForEachEntry) {
  const std::string text = Sparsity::of(at::eye(3)).svg("a < b & c");
  EXPECT_EQ(count(text, "<rect "), 4);  // and the background
  EXPECT_NE(text.find("<rect x='8' y='8' width='4' height='4'/>"), std::string::npos);
  EXPECT_NE(text.find(">a &lt; b &amp; c<"), std::string::npos);
  EXPECT_EQ(count(Sparsity::of(at::eye(3)).svg(), "<text"), 0);
}

}  // namespace
