package main

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/model"
)

func TestFailedOrHungStepLosesTheGPU(t *testing.T) {
	failed := model.Status{Name: "a", State: model.Failed}
	failed.Problem = fmt.Errorf("%w: %w: cudaErrorIllegalAddress", batch.ErrStepFailed, engine.ErrDevice)
	require.ErrorContains(t, lost(nil, []model.Status{{Name: "b", State: model.Ready}, failed}), "cudaErrorIllegalAddress")

	hung := model.Status{Name: "c", State: model.Ready}
	hung.Steps.StepBound, hung.Steps.RunningStepAge = time.Second, time.Second+hungFor
	require.NoError(t, lost(nil, []model.Status{hung}))
	hung.Steps.RunningStepAge++
	require.ErrorIs(t, lost(nil, []model.Status{hung}), engine.ErrDevice)

	corrupt := model.Status{Name: "d", State: model.Failed}
	corrupt.Problem = errors.New("a tensor differs")
	require.NoError(t, lost(nil, []model.Status{corrupt}), "its model is out of service, the GPU is not")
}

func TestFailedReadingLosesTheGPU(t *testing.T) {
	idle := []model.Status{{Name: "a", State: model.Ready}}
	require.ErrorContains(t, lost(fmt.Errorf("%w: cudaErrorECCUncorrectable", engine.ErrDevice), idle), "cudaErrorECCUncorrectable")
	require.NoError(t, lost(engine.ErrPrecondition, idle), "it is being closed")
	synctest.Test(t, func(t *testing.T) {
		failed := func() error { return engine.ErrDevice }
		require.ErrorIs(t, watchGPU(t.Context(), failed, func() []model.Status { return nil }), engine.ErrDevice)
	})
}

func TestGPULostRightBeforeTheEndIsReported(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	none := func() []model.Status { return nil }
	require.ErrorIs(t, watchGPU(ctx, func() error { return engine.ErrDevice }, none), engine.ErrDevice)
	require.NoError(t, watchGPU(ctx, working, none))
}

func working() error { return nil }

func TestLostGPUIsReportedBeforeTheProcessEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := model.Status{Name: "a", State: model.Failed}
		failed.Problem = fmt.Errorf("%w: %w", batch.ErrStepFailed, engine.ErrDevice)
		begin := time.Now()
		require.ErrorIs(t, watchGPU(t.Context(), working, func() []model.Status { return []model.Status{failed} }), engine.ErrDevice)
		require.Equal(t, watchInterval+farewell, time.Since(begin))
	})
}
