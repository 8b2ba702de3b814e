// What the kernels of the projection share: a thread is a Gaussian.
#pragma once

#include "../kernels.h"
#include "../sh.h"
#include "../view.h"
#include "launch.cuh"

namespace splat::cuda {

__device__ __forceinline__ Vec3<float> load3(const float* p, int64_t i) {
  return {p[3 * i], p[3 * i + 1], p[3 * i + 2]};
}

__device__ __forceinline__ void store3(float* p, int64_t i, Vec3<float> x) {
  p[3 * i] = x.x;
  p[3 * i + 1] = x.y;
  p[3 * i + 2] = x.z;
}

__device__ __forceinline__ GaussianValues<float> load_gaussian(const GaussianArrays& g, bool raw,
                                                               int64_t i) {
  GaussianValues<float> v = {
      load3(g.means, i),
      load3(g.scales, i),
      {g.quats[4 * i], g.quats[4 * i + 1], g.quats[4 * i + 2], g.quats[4 * i + 3]},
      g.opacities[i]};
  if (raw) {
    v.scales = {scale_of(v.scales.x), scale_of(v.scales.y), scale_of(v.scales.z)};
    v.opacity = opacity_of(v.opacity);
  }
  return v;
}

// What a view gives of one Gaussian that it shows; each is loaded where it is needed, not before.
struct DenseRow {
  const ProjectBwd& args;
  int64_t i;

  __device__ __forceinline__ Vec2<float> v_mean2d() const {
    return {args.v_means2d[2 * i], args.v_means2d[2 * i + 1]};
  }
  __device__ __forceinline__ Vec3<float> v_conic() const { return load3(args.v_conics, i); }
  __device__ __forceinline__ float v_depth() const { return args.v_depths[i]; }
  __device__ __forceinline__ float v_opacity() const { return args.v_out_opacities[i]; }
  __device__ __forceinline__ Vec3<float> v_color() const { return load3(args.v_colors, i); }
  __device__ __forceinline__ Vec3<float> color() const { return load3(args.colors, i); }
};

// The gradient of the color before the clamp, and of the mean through the direction of view. The
// coefficients' own gradients are basis[k] * v_color.
template <typename Row>
__device__ __forceinline__ Vec3<float> shade_vjp(const GaussianArrays& g,
                                                 const ProjectSettings& settings, const Row& row,
                                                 Vec3<float> mean, int64_t i, float* basis,
                                                 Vec3<float>& v_color) {
  const int degree = settings.sh_degree, num = num_coefficients(degree);
  const Direction<float> direction = direction_to(mean, settings.camera);
  float v_basis[kMaxCoefficients] = {};
  sh_basis(degree, direction.unit, basis);
  const Vec3<float> colors = row.color(), v_colors = row.v_color();
  // Where the color was clamped it does not move.
  v_color = {colors.x > 0 ? v_colors.x : 0.0f, colors.y > 0 ? v_colors.y : 0.0f,
             colors.z > 0 ? v_colors.z : 0.0f};
  if (num == 1) return {0.0f, 0.0f, 0.0f};
  SPLAT_UNROLL
  for (int k = 1; k < kMaxCoefficients; ++k) {
    if (k < num) v_basis[k] = dot(load3(g.shN, i * g.num_rest + k - 1), v_color);
  }
  const Vec3<float> v_unit = sh_basis_vjp(degree, direction.unit, v_basis);
  return normalize_vjp(direction.unit, direction.inverse_length, v_unit);
}

// The gradients of a visible Gaussian's stored parameters; those of its coefficients as above.
template <CameraModel model, typename Row>
__device__ __forceinline__ GaussianValues<float> gaussian_vjp(const GaussianArrays& gaussians,
                                                              const ProjectSettings& settings,
                                                              const Row& row, int64_t i,
                                                              float* basis, Vec3<float>& v_color) {
  const Camera& camera = settings.camera;
  const GaussianValues<float> g = load_gaussian(gaussians, settings.raw, i);
  const View<float> view = view_of<model>(camera, g);
  const float v_effective = row.v_opacity();
  ViewGradient<float> v = {row.v_mean2d(), row.v_conic(), row.v_depth(), 0.0f};
  float v_opacity = v_effective;
  if (settings.antialiased) {
    v_opacity = v_effective * compensation_of(view.ellipse);
    v.compensation = v_effective * g.opacity;
  }
  GaussianValues<float> out = view_of_vjp<model>(camera, g, view, v);
  out.mean = out.mean + shade_vjp(gaussians, settings, row, g.mean, i, basis, v_color);
  if (settings.raw) {
    v_opacity = v_opacity * g.opacity * (1.0f - g.opacity);
    out.scales = {out.scales.x * g.scales.x, out.scales.y * g.scales.y, out.scales.z * g.scales.z};
  }
  // A gradient that overflows (a quaternion of length 1e-30, say) is left out, not passed on.
  const bool finite =
      is_finite(out.mean.x + out.mean.y + out.mean.z + out.quat.w + out.quat.x + out.quat.y +
                out.quat.z + out.scales.x + out.scales.y + out.scales.z + v_opacity);
  const auto shown = [&](float x) { return select(finite, x, 0.0f); };
  return {{shown(out.mean.x), shown(out.mean.y), shown(out.mean.z)},
          {shown(out.scales.x), shown(out.scales.y), shown(out.scales.z)},
          {shown(out.quat.w), shown(out.quat.x), shown(out.quat.y), shown(out.quat.z)},
          shown(v_opacity)};
}

template <CameraModel model>
__device__ __forceinline__ GaussianValues<float> gaussian_vjp(const ProjectBwd& args, int64_t i,
                                                              float* basis, Vec3<float>& v_color) {
  return gaussian_vjp<model>(args.gaussians, args.settings, DenseRow{args, i}, i, basis, v_color);
}

// Starts one of three instances of a kernel, by the model of the camera.
template <typename Kernel, typename... Arguments>
void launch_for_model(const char* name, CameraModel model, Kernel pinhole, Kernel ortho,
                      Kernel fisheye, int64_t blocks, int threads, Stream stream,
                      const Arguments&... args) {
  const Kernel kernel = model == CameraModel::kPinhole ? pinhole
                        : model == CameraModel::kOrtho ? ortho
                                                       : fisheye;
  launch(name, kernel, blocks, threads, stream, args...);
}

}  // namespace splat::cuda
