// Tower with a LibTorch that has no distributed engine: this program is linked with src/mesh/without_c10d.cpp.
#include <gtest/gtest.h>

#include "tower/mesh.h"

namespace {

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const tower::MeshError& error) {
    return error.what();
  }
  return "no MeshError";
}

TEST(MeshesWithoutC10d, SayThatLibTorchHasNoEngineForThem) {
  const std::string expected =
      ": this LibTorch was built without its distributed engine (c10d), or Tower with -DTOWER_DISTRIBUTED=OFF.";
  const std::string environment = message_of([] { tower::Mesh::from_environment({{"data", -1}}); });
  EXPECT_NE(environment.find("Mesh::from_environment" + expected), std::string::npos) << environment;
  // c10d::ProcessGroup is no complete type in such a program: there is no group that could be passed.
  alignas(void*) const char none[sizeof(void*)] = {};
  const auto& group = *reinterpret_cast<const c10::intrusive_ptr<c10d::ProcessGroup>*>(none);
  const std::string of_group = message_of([&] { tower::Mesh::from_group(group, {{"data", -1}}); });
  EXPECT_NE(of_group.find("Mesh::from_group" + expected), std::string::npos) << of_group;
  EXPECT_FALSE(tower::Mesh().defined());
}

}  // namespace
