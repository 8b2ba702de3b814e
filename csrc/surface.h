// How a Gaussian looks as a solid body: its normal, the surface of its hull, and light on it.
#pragma once

#include "blend.h"
#include "view.h"

namespace splat {

template <typename F>
SPLAT_HD Vec3<F> select3(Mask<F> mask, Vec3<F> yes, Vec3<F> no) {
  return {select(mask, yes.x, no.x), select(mask, yes.y, no.y), select(mask, yes.z, no.z)};
}

// What modes.h asks of a Gaussian in a view; `good`: all of it is finite.
template <typename F>
struct Shape {
  Vec3<F> normal;
  F ux, uy, thickness, pixels;
  Mask<F> good;
};

// The rotation's column of the smallest scale, in the camera's axes, turned against `direction`.
template <typename F>
SPLAT_HD Vec3<F> normal_of(const Mat3<F>& rotation, Vec3<F> scales, const Camera& camera,
                           Vec3<F> direction) {
  const auto& m = rotation.m;
  const Vec3<F> x = {m[0][0], m[1][0], m[2][0]}, y = {m[0][1], m[1][1], m[2][1]};
  const Vec3<F> z = {m[0][2], m[1][2], m[2][2]};
  const Mask<F> x_shortest = (scales.x <= scales.y) & (scales.x <= scales.z);
  const Vec3<F> axis = select3<F>(x_shortest, x, select3<F>(scales.y <= scales.z, y, z));
  const Vec3<F> n = times(camera.rotation, axis);
  return select3<F>(dot(n, direction) > constant<F>(0.0f), constant<F>(-1.0f) * n, n);
}

template <CameraModel model, typename F>
SPLAT_HD Shape<F> shape_of(const Camera& camera, const GaussianValues<F>& g) {
  const F zero = constant<F>(0.0f), one = constant<F>(1.0f);
  const View<F> view = view_of<model>(camera, g);
  const Ellipse<F>& e = view.ellipse;
  const Vec3<F> direction = model == CameraModel::kOrtho ? Vec3<F>{zero, zero, one} : view.point;
  Shape<F> s;
  s.normal = normal_of(view.rotation, g.scales, camera, direction);
  const float* r = camera.rotation[2];
  const Vec3<F> forward = {constant<F>(r[0]), constant<F>(r[1]), constant<F>(r[2])};
  const Vec3<F> unit_depths = times(forward, view.rotation.m);
  const Vec3<F> depths = {unit_depths.x * g.scales.x, unit_depths.y * g.scales.y,
                          unit_depths.z * g.scales.z};
  const F xz = dot(e.axes.row0, depths), yz = dot(e.axes.row1, depths);
  s.ux = e.a * xz + e.b * yz;
  s.uy = e.b * xz + e.c * yz;
  s.thickness = square_root(maximum(dot(depths, depths) - (s.ux * xz + s.uy * yz), zero));
  const Mat23<F>& j = view.image.jacobian;
  s.pixels = square_root(magnitude(j.row0.x * j.row1.y - j.row0.y * j.row1.x));
  s.good = is_finite(s.normal.x + s.normal.y + s.normal.z + s.ux + s.uy + s.thickness + s.pixels);
  return s;
}

constexpr float kAmbient = 0.35f;  // how bright a surface is that is seen edge-on

template <typename F>
struct Front {
  F depth, light;
};

// The front of a hull of k standard deviations squared, limit = k / 2, where the pixel's falloff is
// sigma <= limit: with e = pixel - mean it lies at depth + u e - thickness sqrt(k - 2 sigma), and a
// light at the camera shades it by its slope there. `surface` as in modes.h, (dx, dy) = -e.
template <typename F, typename Splat>
SPLAT_HD Front<F> front_of(const Splat& s, const float* surface, F limit, F sigma, F dx, F dy) {
  const F one = constant<F>(1.0f), ux = constant<F>(surface[0]), uy = constant<F>(surface[1]);
  const F thickness = constant<F>(surface[2]), pixels = constant<F>(surface[3]);
  const F a = constant<F>(2.0f * s.half_a), b = constant<F>(s.b), c = constant<F>(2.0f * s.half_c);
  const F left = limit + limit - (sigma + sigma);
  const F root = square_root(maximum(left, constant<F>(1e-6f)));
  const F ex = -dx, ey = -dy;
  const F bulge = thickness / root;
  const F slope_x = pixels * (ux + bulge * (a * ex + b * ey));
  const F slope_y = pixels * (uy + bulge * (b * ex + c * ey));
  const F facing = one / square_root(one + slope_x * slope_x + slope_y * slope_y);
  return {constant<F>(s.depth) + ux * ex + uy * ey - thickness * root,
          constant<F>(kAmbient) + constant<F>(1.0f - kAmbient) * facing};
}

}  // namespace splat
