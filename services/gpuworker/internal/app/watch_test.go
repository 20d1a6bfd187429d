package app

import (
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

func TestAFailedStepOrOneThatHangsForLongLosesTheGPU(t *testing.T) {
	failed := model.Status{Name: "a", State: model.Failed}
	failed.Problem = fmt.Errorf("%w: %w: cudaErrorIllegalAddress", batch.ErrStepFailed, engine.ErrDevice)
	require.ErrorContains(t, lost([]model.Status{{Name: "b", State: model.Ready}, failed}), "cudaErrorIllegalAddress")

	hung := model.Status{Name: "c", State: model.Ready}
	hung.Steps.StepBound, hung.Steps.RunningStepAge = time.Second, time.Second+hungFor
	require.NoError(t, lost([]model.Status{hung}))
	hung.Steps.RunningStepAge++
	require.ErrorIs(t, lost([]model.Status{hung}), engine.ErrDevice)

	corrupt := model.Status{Name: "d", State: model.Failed}
	corrupt.Problem = errors.New("a tensor differs")
	require.NoError(t, lost([]model.Status{corrupt}), "its model is out of service, the GPU is not")
}

func TestTheReportHasTimeToNameTheErrorBeforeTheProcessEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := model.Status{Name: "a", State: model.Failed}
		failed.Problem = fmt.Errorf("%w: %w", batch.ErrStepFailed, engine.ErrDevice)
		begin := time.Now()
		require.ErrorIs(t, watchGPU(t.Context(), func() []model.Status { return []model.Status{failed} }), engine.ErrDevice)
		require.Equal(t, watchInterval+farewell, time.Since(begin))
	})
}
