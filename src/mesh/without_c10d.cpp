// The mesh of a LibTorch without its distributed engine, in the place of c10d.cpp and gloo.cpp
// (cmake/TowerDistributed.cmake).
#include "tower/detail/spellings.h"
#include "tower/mesh.h"

namespace tower {
namespace {

[[noreturn]] void refuse(const char* who) {
  throw MeshError(std::string("Mesh") + detail::spellings().scope + who +
                  ": this LibTorch was built without its distributed engine (c10d), or Tower with "
                  "-DTOWER_DISTRIBUTED=OFF. Use a LibTorch that has it. Without a mesh, vmap maps over a named axis in "
                  "one process.");
}

}  // namespace

Mesh Mesh::from_environment(std::vector<MeshAxis>, MeshOptions) { refuse("from_environment"); }
Mesh Mesh::from_group(const c10::intrusive_ptr<c10d::ProcessGroup>&, std::vector<MeshAxis>, MeshOptions) {
  refuse("from_group");
}

}  // namespace tower
