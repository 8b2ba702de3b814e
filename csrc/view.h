// A Gaussian before one camera: from its parameters to the ellipse on the image, and the gradients.
#pragma once

#include "camera.h"
#include "gaussian.h"

namespace splat {

// The activated parameters: scales are standard deviations, the opacity is in 0..1.
template <typename F>
struct GaussianValues {
  Vec3<F> mean, scales;
  Quat<F> quat;
  F opacity;
};

// Everything between the parameters and the ellipse; the backward pass makes it again.
template <typename F>
struct View {
  Vec3<F> point;  // in the camera's frame
  ImagePoint<F> image;
  Mat3<F> rotation;
  Mat23<F> projection;
  Ellipse<F> ellipse;
};

template <CameraModel model, typename F>
SPLAT_HD View<F> view_of(const Camera& camera, const GaussianValues<F>& g) {
  const float* t = camera.translation;
  View<F> v;
  v.point = times(camera.rotation, g.mean) +
            Vec3<F>{constant<F>(t[0]), constant<F>(t[1]), constant<F>(t[2])};
  v.image = project_point<model>(camera, v.point);
  v.rotation = rotation_of(g.quat);
  v.projection = {times(v.image.jacobian.row0, camera.rotation),
                  times(v.image.jacobian.row1, camera.rotation)};
  v.ellipse = ellipse_of(v.projection, v.rotation, g.scales);
  return v;
}

// Every condition is one that NaN fails; `opacity` with its antialiasing factor.
template <typename F>
SPLAT_HD Mask<F> is_seen(const View<F>& v, F opacity, Vec2<F> radii, const Camera& camera) {
  const F zero = constant<F>(0.0f);
  const Vec2<F> m = v.image.mean;
  const Ellipse<F>& e = v.ellipse;
  return (v.point.z > constant<F>(camera.near_plane)) &
         (v.point.z < constant<F>(camera.far_plane)) & (opacity >= constant<F>(kAlphaThreshold)) &
         is_finite(opacity) & (radii.x > zero) & (radii.y > zero) & (m.x + radii.x > zero) &
         (m.y + radii.y > zero) & (m.x - radii.x < constant<F>(static_cast<float>(camera.width))) &
         (m.y - radii.y < constant<F>(static_cast<float>(camera.height))) & (e.det > zero) &
         is_finite(e.a) & is_finite(e.b) & is_finite(e.c) & is_finite(m.x) & is_finite(m.y);
}

template <typename F>
struct Direction {
  Vec3<F> unit;
  F inverse_length;
};

// From the camera to the Gaussian: the direction in which its color is asked for.
template <typename F>
SPLAT_HD Direction<F> direction_to(Vec3<F> mean, const Camera& camera) {
  const float* p = camera.position;
  const Vec3<F> d = mean - Vec3<F>{constant<F>(p[0]), constant<F>(p[1]), constant<F>(p[2])};
  const F inverse = constant<F>(1.0f) / square_root(dot(d, d));
  return {inverse * d, inverse};
}

// The gradients that reach a view: of the image point, the conic, the depth, the compensation.
template <typename F>
struct ViewGradient {
  Vec2<F> mean2d;
  Vec3<F> conic;
  F depth, compensation;
};

// The gradients of the activated parameters but the opacity's (`.opacity` is left alone).
template <CameraModel model, typename F>
SPLAT_HD GaussianValues<F> view_of_vjp(const Camera& camera, const GaussianValues<F>& g,
                                       const View<F>& view, const ViewGradient<F>& v) {
  const EllipseGradient<F> e = ellipse_of_vjp(view.ellipse, view.projection, view.rotation,
                                              g.scales, v.conic, v.compensation);
  // projection = jacobian * camera rotation
  const Mat23<F> v_jacobian = {times(camera.rotation, e.projection.row0),
                               times(camera.rotation, e.projection.row1)};
  Vec3<F> v_point = project_point_vjp<model>(camera, view.point, v.mean2d, v_jacobian);
  v_point.z = v_point.z + v.depth;
  GaussianValues<F> out;
  out.mean = times(v_point, camera.rotation);
  out.scales = e.scales;
  out.quat = rotation_of_vjp(g.quat, e.rotation);
  out.opacity = constant<F>(0.0f);
  return out;
}

}  // namespace splat
