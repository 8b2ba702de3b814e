// Runs every shared maths function once a Gaussian in a kernel. It is no part of the product: it
// lets nvcc prove (make cuda-check) that the headers which the CPU kernels use compile for a
// device.
#include <cstdint>

#include "../blend.h"
#include "../camera.h"
#include "../gaussian.h"
#include "../sh.h"

namespace splat {
namespace {

struct HeadersCheck {
  Camera camera;
  const float* parameters;  // [N, 11] mean, quaternion, scales, opacity
  const float* gradients;   // [N, 3] some gradient to send back
  float* out;               // [N, 16]
  int64_t num;
};

template <CameraModel model>
__device__ void check_one(const HeadersCheck& args, int64_t i) {
  const float* p = args.parameters + 11 * i;
  const Vec3<float> mean = {p[0], p[1], p[2]}, scales = {p[7], p[8], p[9]};
  const Quat<float> quat = {p[3], p[4], p[5], p[6]};
  const Camera& camera = args.camera;
  const Vec3<float> t = {camera.translation[0], camera.translation[1], camera.translation[2]};
  const Vec3<float> point = times(camera.rotation, mean) + t;
  const ImagePoint<float> image = project_point<model>(camera, point);
  const Mat3<float> rotation = rotation_of(quat);
  const Mat23<float> projection = {times(image.jacobian.row0, camera.rotation),
                                   times(image.jacobian.row1, camera.rotation)};
  const Ellipse<float> ellipse = ellipse_of(projection, rotation, scales);
  const float opacity = p[10] * compensation_of(ellipse);
  const Vec2<float> radii = radii_of(ellipse, opacity);
  const float distance = square_root(dot(mean, mean));
  const Vec3<float> direction = (1.0f / distance) * mean;
  float basis[kMaxCoefficients];
  sh_basis(3, direction, basis);
  const float sigma =
      falloff(0.5f * ellipse.a, ellipse.b, 0.5f * ellipse.c, image.mean.x, image.mean.y);
  const Coverage<float> coverage = cover(sigma, opacity, 0.999f, 1.0f);

  const float* v = args.gradients + 3 * i;
  const Vec3<float> v_conic = {v[0], v[1], v[2]};
  const EllipseGradient<float> e =
      ellipse_of_vjp(ellipse, projection, rotation, scales, v_conic, v[0]);
  const Mat23<float> v_jacobian = {times(camera.rotation, e.projection.row0),
                                   times(camera.rotation, e.projection.row1)};
  const Vec3<float> v_point = project_point_vjp<model>(camera, point, {v[0], v[1]}, v_jacobian);
  const Vec3<float> v_direction =
      normalize_vjp(direction, 1.0f / distance, sh_basis_vjp(3, direction, basis));
  const Vec3<float> v_mean = times(v_point, camera.rotation) + v_direction;
  const Quat<float> v_quat = rotation_of_vjp(quat, e.rotation);
  float* out = args.out + 16 * i;
  const float results[16] = {v_mean.x,
                             v_mean.y,
                             v_mean.z,
                             v_quat.w,
                             v_quat.x,
                             v_quat.y,
                             v_quat.z,
                             e.scales.x,
                             e.scales.y,
                             e.scales.z,
                             radii.x,
                             radii.y,
                             opacity,
                             coverage.alpha,
                             advance(coverage, 1.0f),
                             is_finite(minimum(sigma, maximum(opacity, 0.0f))) ? 1.0f : 0.0f};
  for (int k = 0; k < 16; ++k) out[k] += results[k];
}

}  // namespace

__global__ void headers_check(HeadersCheck args) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= args.num) return;
  check_one<CameraModel::kPinhole>(args, i);
  check_one<CameraModel::kOrtho>(args, i);
  check_one<CameraModel::kFisheye>(args, i);
}

}  // namespace splat
