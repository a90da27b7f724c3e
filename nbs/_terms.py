"""What people type into a search, and the page that answers it; the names of the library are found without this

Each term becomes an entry of the general index, which the search prefers to the words of a page.
"""

def _listed(table): return {page: [o.strip() for o in terms.split(',')] for page, terms in table.items()}


TERMS = _listed({   # page, or page#section → terms
    'lessons/01_images': 'images, image classification, image folder, pictures, augmentation, resnet, torchvision, '
                         'cnn, ImageFolder',
    'lessons/02_table': 'csv, csv file, tabular data, pandas, DataFrame, categorical, missing values, embedding',
    'lessons/03_text': 'text, nlp, tokenizer, transformers, Hugging Face, padding, text classification, bert',
    'lessons/04_segmentation': 'segmentation, semantic segmentation, mask, masks, u-net, unet, dice, iou, jaccard, '
                               'intersection over union, pixel accuracy',
    'lessons/05_forecasting': 'time series, forecasting, forecast, regression, quantile, prediction interval, pinball, '
                              'mase, sliding window, demand',
    'lessons/06_adapters': 'lora, peft, adapter, adapters, parameter-efficient fine-tuning, llm, llama, '
                           'language model, fine-tune a language model',
    'lessons/07_pretrained': 'fine-tune, fine-tuning, transfer learning, pretrained, pretrained model, backbone, timm, '
                             'few images, discriminative learning rates',
    'tutorials/01_trainer_pattern': 'custom step, train_step, custom loss',
    'tutorials/02_custom_hooks': 'callback, callbacks, custom callback, hook',
    'tutorials/03_watching_training': 'live plot, progress bar, interrupt, stop training, loss curve, Ctrl-C',
    'tutorials/04_learning_rates': 'learning rate, learning-rate schedule, lr, one cycle',
    'tutorials/05_gan': 'gan, several losses',
    'tutorials/06_make_it_fast': 'slow, speed, faster, num_workers, bottleneck',
    'tutorials/07_never_lose_a_run': 'resume, continue training, reproducibility',
    'tutorials/08_more_than_one_process': 'ddp, torchrun, distributed',
    'tutorials/09_train_in_the_background': 'background, long training',
    'tutorials/10_compare_runs': 'compare trainings, hyperparameters side by side',
    'tutorials/11_search_settings': 'hyperparameters, tune, tuning',
    'tutorials/12_why_two_runs_differ': 'not reproducible, different results, nondeterminism',
    'tutorials/13_prove_that_it_resumes': 'checkpoint test, lost state, resumes differently',
    'tutorials/14_it_spiked': 'loss spike, spike, diverged, loss jumped, bad batch, skip a batch, outlier',
    'howto/01_resume_after_a_crash': 'crash, resume after a crash, killed',
    'howto/02_tensorboard': 'tensorboard, logging',
    'howto/03_two_optimizers': 'two optimizers, several optimizers',
    'howto/04_torchmetrics': 'torchmetrics, f1, auroc, metrics, metric',
    'howto/05_several_gpus': 'multi-gpu, several gpus, multiple gpus, distributed training',
    'howto/06_from_a_raw_loop': 'training loop, raw loop, plain PyTorch',
    'howto/07_from_fastai': 'fastai', 'howto/08_from_lightning': 'lightning, pytorch lightning',
    'howto/09_from_keras': 'keras', 'howto/15_from_trainer_tools': 'trainer-tools',
    'howto/10_the_kernel_died': 'kernel died, kernel restart, marimo',
    'howto/17_read_the_picture': 'loss curve, overfitting, best epoch, log scale, logarithmic axis, dark mode',
    'howto/16_everyday#detect-objects': 'object detection, detection, bounding box, bounding boxes, faster r-cnn, map',
    'examples/00_overview': 'gallery, example programs, samples',
    'examples/12_reinforce': 'reinforcement learning, rl, policy gradient',
    'examples/14_actor_critic': 'actor critic, actor-critic, a2c, advantage, value function, critic',
    'start/01_install': 'install, pip, requirements, vs code, colab',
    'start/02_quickstart': 'getting started, tutorial, example',
    'start/03_is_it_for_you': 'comparison, alternatives, benchmark, overhead',
    'start/04_faq#how-do-i-see-overfitting-and-what-helps': 'overfitting',
    'start/04_faq#my-loss-is-nan': 'nan, loss is nan, inf',
    'start/04_faq#the-gpu-is-out-of-memory': 'out of memory, oom, cuda out of memory, memory',
    'start/04_faq#the-loss-does-not-go-down': 'not learning, loss does not decrease',
    'start/04_faq#how-do-i-use-the-gpu': 'gpu, cuda, mps, device',
    'start/04_faq#my-classes-are-imbalanced': 'class imbalance, imbalanced, class weights',
    'start/04_faq#same-seed-other-numbers': 'seed, deterministic',
    'start/04_faq#what-may-my-data-be': 'dataset, numpy, data formats',
    'start/04_faq#my-targets-have-the-wrong-shape-or-type': 'shape mismatch, dtype, broadcast',
    'start/04_faq#my-batch-is-a-dict-or-my-model-returns-several-things': 'dict batch, multiple inputs',
    'data/04_loaders': 'DataLoader, batch size, shuffle',
    'data/05_prepare#table': 'tabular, encode categories, standard scaler, normalize columns, entity embeddings',
    'data/05_prepare#images': 'ImageFolder, images from a folder, masks folder',
    'data/05_prepare#texts': 'text files, vocabulary, tokenize words',
    'data/05_prepare': 'train test split, stratify',
    'look/01_samples': 'show batch, look at data',
    'look/01_samples#what-a-model-makes-while-it-trains':
        'samples while training, generate text while training, gan samples, show images while training, '
        'qualitative results',
    'look/03_results': 'top losses, worst predictions, results, confusion matrix, precision, recall, '
                       'classification report, class names, probabilities',
    'look/05_summary': 'model summary, parameters, flops, layer shapes, memory of a model',
    'look/09_doctor': 'debug, debugging, sanity check, common mistakes',
    'loop/07_history': 'history, plot loss',
    'loop/09_optim': 'optimizer, weight decay, param groups, layer-wise learning rates',
    'loop/14_learner': 'predict, inference, predict_step, evaluate, validation, trainer, '
                       'dry run',
    'features/01_gradients': 'gradient accumulation, gradient clipping, exploding gradients, grad norm',
    'features/01_gradients#mixed-precision':
        'mixed precision, half precision, fp16, bf16, float16, autocast, GradScaler',
    'features/02_weights': 'exponential moving average, weight averaging, freeze layers, unfreeze, '
                           'freeze and unfreeze, BatchNorm',
    'features/03_schedules': 'scheduler, lr scheduler, warmup, cosine annealing, learning rate scheduler',
    'features/04_speed': 'torch.compile, profiler, profiling',
    'save/03_checkpoint': 'checkpointing, save, save and load, load model, save model, rewind, roll back, go back, '
                          'undo epochs, save best model, best model, load best model, best weights, '
                          'best checkpoint, keep best, ModelCheckpoint, save_best_only',
    'runs/25_diff': 'diff, compare bit for bit, why do two runs differ, determinism, debug a refactoring, '
                    'reproducible resume, exact resume, check resume',
    'save/04_watch': 'early stopping, patience, restore best weights',
    'howto/18_larger_than_the_host': 'distributed checkpoint, dcp, sharded checkpoint',
    'howto/19_web_service': 'web service, http server, rest api, inference server',
    'howto/20_for_scripts_and_assistants': 'command line, cli, shell, terminal, script, assistant, agent, AGENTS.md, '
                                           'json, exit code',
    'save/06_export': 'safetensors, torch.export, deployment, serving',
    'howto/16_everyday': 'recipes, everyday recipes',
    'howto/16_everyday#export-to-onnx': 'onnx, export onnx, onnx runtime, onnxruntime',
    'howto/16_everyday#cross-validate-and-predict-with-an-ensemble':
        'k-fold, kfold, k-fold cross-validation, cross-validation, cross validation, StratifiedKFold, GroupKFold, '
        'ensemble, ensembles, model averaging',
    'howto/16_everyday#save-memory-with-activation-checkpointing':
        'activation checkpointing, gradient checkpointing, recompute, offload activations',
    'howto/16_everyday#use-a-scheduler-of-timm': 'timm scheduler',
    'howto/16_everyday#use-a-metric-of-scikit-learn': 'scikit-learn metric, sklearn metric, f1 score, roc auc',
    'howto/16_everyday#forecast-with-quantiles': 'quantile regression, pinball loss, prediction interval',
    'howto/16_everyday#write-a-card-of-a-run': 'model card',
    'howto/16_everyday#predict-one-image': 'predict one image, predict a single sample, single image',
    'howto/16_everyday#use-the-model-without-this-library': 'inference without the library, production',
    'howto/16_everyday#write-a-loss-of-your-own-or-weigh-classes': 'custom loss function, focal loss',
    'show/04_lr_find': 'learning rate finder, lr finder, find learning rate',
    'show/06_batch_size': 'batch size finder, find batch size, largest batch, auto batch size',
    'show/05_loggers': 'csv logger, jsonl, wandb, weights and biases, mlflow, trackio',
    'show/03_controls': 'buttons, pause',
    'parallel/05_accelerate': 'accelerate, fsdp, sharding, large models',
    'howto/11_several_machines': 'multi-node, torchrun, elastic, cluster',
    'howto/12_slurm': 'slurm, sbatch, cluster, HPC, preemption, requeue, time limit',
    'howto/13_ray': 'ray, ray train, cluster',
    'runs/09_table': 'experiments, list runs',
    'runs/10_compare': 'compare runs, compare experiments, experiment tracking',
    'runs/07_run': 'fork, branch, what if',
    'runs/16_sweep': 'hyperparameter search, hyperparameter tuning, optuna, grid search, pruning',
})
