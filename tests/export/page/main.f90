program main
  use, intrinsic :: iso_c_binding
  use newton_interface
  implicit none
  integer(c_int64_t), parameter :: n = 1
  real(c_float), target :: x(3, n), load(3, n), matrix(3, 3, n), next(3, n), norm(n)
  character(c_char), allocatable, target :: work(:)
  type(c_ptr) :: arguments(3), results(2)
  integer :: k

  x = 0
  load(:, 1) = [1, 2, 3]
  matrix(:, :, 1) = reshape([5, 1, 0, 1, 5, 1, 0, 1, 5], [3, 3])
  allocate(work(newton_work_bytes(n)))
  arguments = [c_loc(x), c_loc(load), c_loc(matrix)]
  results = [c_loc(next), c_loc(norm)]
  do k = 1, 5
    if (newton(n, arguments, results, c_loc(work)) /= 0) stop 1
    x = next
  end do
  print "(a)", trim(merge("converged    ", "not converged", norm(1) < 1e-5))
end program
