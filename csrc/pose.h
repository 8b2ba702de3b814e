// The gradient of a loss with respect to where the camera stands. A camera that moves sees what it
// would see if the whole scene, rigid, moved the other way, so the gradients of means and rotations
// hold that of the camera; but the direction under which harmonics are seen does not turn with it.
#pragma once

#include <cstdint>

#include "sh.h"

namespace splat {

struct PoseGradient {
  const float* means;    // [N, 3]
  const float* quats;    // [N, 4] wxyz, any length
  const float* shN;      // [N, num_rest, 3]
  const float* v_means;  // [N, 3]
  const float* v_quats;  // [N, 4]
  const float* v_sh0;    // [N, 1, 3], or null: no color depends on the direction
  const int32_t* radii;  // [N, 2]
  int64_t num;
  int num_rest, sh_degree;
  double rotation[3][3];  // world to camera
  double position[3];     // of the camera
};

constexpr int kTwist = 6;

// What the scene's force on the camera is, and its torque about the camera's place.
struct Twist {
  Vec3<double> shift, turn;
};

SPLAT_HD Twist operator+(Twist a, Twist b) { return {a.shift + b.shift, a.turn + b.turn}; }

// The part of the gradient of a mean that comes from the direction under which its color is seen.
SPLAT_HD Vec3<double> through_direction(const PoseGradient& args, Vec3<double> offset, int64_t i) {
  if (args.v_sh0 == nullptr) return {0.0, 0.0, 0.0};
  // In single precision, as the color was made.
  const Vec3<float> d = {static_cast<float>(offset.x), static_cast<float>(offset.y),
                         static_cast<float>(offset.z)};
  const float inverse = 1.0f / square_root(dot(d, d));
  // sh0 has the same factor everywhere: its gradient tells that of the color.
  const float* c = args.v_sh0 + 3 * i;
  const Vec3<float> v_color = {c[0] / kSh0, c[1] / kSh0, c[2] / kSh0};
  const float* rest = args.shN + 3 * args.num_rest * i;
  const int num = num_coefficients(args.sh_degree);
  float v_basis[kMaxCoefficients] = {};
  SPLAT_UNROLL
  for (int k = 1; k < kMaxCoefficients; ++k) {
    if (k >= num) continue;
    const float* p = rest + 3 * (k - 1);
    v_basis[k] = dot(Vec3<float>{p[0], p[1], p[2]}, v_color);
  }
  const Vec3<float> unit = inverse * d;
  const Vec3<float> v = normalize_vjp(unit, inverse, sh_basis_vjp(args.sh_degree, unit, v_basis));
  return {v.x, v.y, v.z};
}

// What Gaussian i adds, along the axes of the world: nothing where it is out of sight, or where its
// gradients are no numbers.
SPLAT_HD Twist twist_of(const PoseGradient& args, int64_t i) {
  const Twist nothing = {{0.0, 0.0, 0.0}, {0.0, 0.0, 0.0}};
  if (!(args.radii[2 * i] > 0 && args.radii[2 * i + 1] > 0)) return nothing;
  const auto row3 = [&](const float* p) -> Vec3<double> {
    return {p[3 * i], p[3 * i + 1], p[3 * i + 2]};
  };
  const float *q = args.quats + 4 * i, *v_q = args.v_quats + 4 * i;
  const Vec3<double> position = {args.position[0], args.position[1], args.position[2]};
  const Vec3<double> offset = row3(args.means) - position, force = row3(args.v_means);
  const Vec3<double> axis = {q[1], q[2], q[3]}, v_axis = {v_q[1], v_q[2], v_q[3]};
  const double w = q[0], v_w = v_q[0];
  // A turn t of the world makes a quaternion (1, t / 2) times itself, whatever its length.
  const Vec3<double> spin = 0.5 * (w * v_axis - v_w * axis + cross(axis, v_axis));
  const Twist twist = {force, cross(offset, force - through_direction(args, offset, i)) + spin};
  const double sum =
      twist.shift.x + twist.shift.y + twist.shift.z + twist.turn.x + twist.turn.y + twist.turn.z;
  return is_finite(sum) ? twist : nothing;
}

// Writes the sum of all, along the camera's axes: the shift, then the turn.
SPLAT_HD void write_twist(const PoseGradient& args, const Twist& sum, double* out) {
  const Vec3<double> shift = times(args.rotation, sum.shift);
  const Vec3<double> turn = times(args.rotation, sum.turn);
  out[0] = shift.x;
  out[1] = shift.y;
  out[2] = shift.z;
  out[3] = turn.x;
  out[4] = turn.y;
  out[5] = turn.z;
}

namespace cpu {

// `out` [kTwist]; the same for any number of threads.
void pose_gradient(const PoseGradient& args, double* out, int num_threads);

}  // namespace cpu

namespace cuda {

int64_t pose_gradient_scratch(int64_t num);  // bytes
void pose_gradient(const PoseGradient& args, double* out, void* scratch, void* stream);

}  // namespace cuda
}  // namespace splat
