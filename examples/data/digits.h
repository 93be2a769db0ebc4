// The handwritten digits of digits.csv (see README.md here) as tensors.
//
//   const digits::Split data = digits::load();
//   data.train.images;     // float [1437, 1, 8, 8], pixels in [0, 1]
//   data.held_out.labels;  // int64 [360]
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace digits {

constexpr int64_t kSide = 8;
constexpr int64_t kClasses = 10;

struct Set {
  at::Tensor images;  // float [n, 1, 8, 8]
  at::Tensor labels;  // int64 [n]

  int64_t size() const { return labels.size(0); }
  Set select(const at::Tensor& rows) const { return {images.index_select(0, rows), labels.index_select(0, rows)}; }
};

struct Split {
  Set train;
  Set held_out;
};

inline std::filesystem::path default_path() { return std::filesystem::path(TOWER_EXAMPLES_DIR) / "data/digits.csv"; }

/// All images, in the order of the file.
inline Set read(const std::filesystem::path& path = default_path()) {
  constexpr int64_t kPixels = kSide * kSide;
  constexpr float kBrightest = 16;
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path.string());

  std::vector<float> pixels;
  std::vector<int64_t> labels;
  for (std::string line; std::getline(file, line);) {
    std::array<int64_t, kPixels + 1> numbers{};
    const char* at = line.data();
    const char* const end = at + line.size();
    for (int64_t& number : numbers) {
      const auto [next, error] = std::from_chars(at, end, number);
      if (error != std::errc())
        throw std::runtime_error(path.string() + ": line " + std::to_string(labels.size() + 1) + " is not 65 numbers");
      at = next == end ? end : next + 1;
    }
    for (int64_t i = 0; i < kPixels; ++i) pixels.push_back(static_cast<float>(numbers[i]) / kBrightest);
    labels.push_back(numbers.back());
  }
  const auto n = static_cast<int64_t>(labels.size());
  return {at::from_blob(pixels.data(), {n, 1, kSide, kSide}, at::kFloat).clone(),
          at::from_blob(labels.data(), {n}, at::kLong).clone()};
}

/// Every fifth image is held out. Neighbours in the file often share a writer; this way both parts know all writers.
inline Split load(const std::filesystem::path& path = default_path()) {
  const Set all = read(path);
  std::vector<int64_t> train, held_out;
  for (int64_t i = 0; i < all.size(); ++i) (i % 5 == 0 ? held_out : train).push_back(i);
  return {all.select(at::tensor(train)), all.select(at::tensor(held_out))};
}

}  // namespace digits
