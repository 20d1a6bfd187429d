package health

import "fmt"

// Check is one named condition of a state.
type Check struct {
	Name    string
	OK      bool
	Message string // the problem and the next step; empty when OK
}

// Names of the checks of a device.
const (
	// CheckDevice: the device works. If it does not, no other check of it is judged.
	CheckDevice = "device"
	// CheckManagement: the readings that this kind of device has are available.
	CheckManagement = "management"
	// CheckMemoryErrors: the device has no uncorrected memory errors. Corrected ones are reported
	// but normal.
	CheckMemoryErrors = "memory-errors"
	// CheckMemoryPressure: no other process uses memory that the ledger counts as free.
	CheckMemoryPressure = "memory-pressure"
	// CheckFrees: the driver accepted every free.
	CheckFrees = "frees"
	// CheckLeaks: no buffer was dropped without being freed.
	CheckLeaks = "leaks"
)

// Names of the checks of a model, which follows a slash.
const (
	// CheckStepProgress: its steps end within their bound.
	CheckStepProgress = "step-progress"
	// CheckModel: it is in service.
	CheckModel = "model"
	// CheckResidency: its resident bytes are verified about as often as configured.
	CheckResidency = "residency"
)

// Names of the checks of a codebook, which follows a slash.
const (
	// CheckCodebook: it is in service.
	CheckCodebook = "codebook"
	// CheckCodebookResidency is CheckResidency of a codebook.
	CheckCodebookResidency = "codebook-residency"
)

// verdict is a check and the best state that it permits: Ready, Degraded or NotReady.
type verdict struct {
	Check
	atBest State
}

// passed is a check that holds.
func passed(name string) verdict { return verdict{Check{Name: name, OK: true}, Ready} }

// failed is a check that fails, with a message as of fmt.Sprintf.
func failed(name string, atBest State, format string, args ...any) verdict {
	return verdict{Check{Name: name, Message: fmt.Sprintf(format, args...)}, atBest}
}
