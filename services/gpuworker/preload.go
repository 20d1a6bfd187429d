package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/filecache"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/services/internal/app"
)

// errNoModel is the error of a model of --load that has no file in the models folder. A restart
// does not help.
var errNoModel = errors.New("there is no such model to load at the start")

// preload loads the models of --load one after another and pins them. It skips a load that
// UnloadModel ends.
func preload(ctx context.Context, names []string, models *model.Manager, logger hclog.Logger) error {
	pin := true
	for _, name := range names {
		_, _, err := models.Load(ctx, name, model.Options{Pin: &pin}, nil)
		switch {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, model.ErrLoadEnded):
			logger.Warn("model not loaded at the start", "model", name, "error", err)
		case errors.Is(err, model.ErrName), errors.Is(err, model.ErrNotFound) && !filecache.OfSystem(err):
			return app.Usage(fmt.Errorf("--load %s: %w: %w", name, errNoModel, err))
		default:
			return fmt.Errorf("load %q at start: %w", name, err)
		}
	}
	return nil
}

// warnNoModels logs a warning if the models folder has no model that can be loaded.
func warnNoModels(folder string, models *model.Manager, logger hclog.Logger) {
	if advice := model.Advice(models.Files()); advice != "" {
		logger.Warn("the models folder has no model that can be loaded", "folder", folder, "reason", advice)
	}
}

// newIncarnation returns an id that differs at every start of the worker.
func newIncarnation() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return fmt.Sprintf("%x-%s", time.Now().Unix(), hex.EncodeToString(b[:]))
}
