"""How well a model shows photographs that it was not trained on: PSNR, SSIM, LPIPS."""
