import ctypes

library = ctypes.CDLL("./libnewton.so")
library.newton_work_bytes.restype = ctypes.c_int64
library.newton_work_bytes.argtypes = [ctypes.c_int64]
library.newton.argtypes = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]

n = 1
x, load = (ctypes.c_float * 3)(), (ctypes.c_float * 3)(1, 2, 3)
matrix = (ctypes.c_float * 9)(5, 1, 0, 1, 5, 1, 0, 1, 5)
following, norm = (ctypes.c_float * 3)(), (ctypes.c_float * 1)()


def pointers(*arrays):
    return (ctypes.c_void_p * len(arrays))(*(ctypes.addressof(a) for a in arrays))


work = ctypes.create_string_buffer(library.newton_work_bytes(n))
for _ in range(5):
    assert library.newton(n, pointers(x, load, matrix), pointers(following, norm), work) == 0
    x[:] = following[:]
print("converged" if norm[0] < 1e-5 else "not converged")
