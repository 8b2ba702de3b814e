"""How well a model shows photos that it was not trained on: PSNR, SSIM, LPIPS."""
