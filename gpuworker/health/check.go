package health

import "fmt"

// Check is one named condition behind a state.
type Check struct {
	Name    string
	OK      bool
	Message string // what is wrong and what to do; empty when OK
}

// Names of the checks of a device.
const (
	// CheckDevice: the device works. Where it does not, nothing else of it is judged.
	CheckDevice = "device"
	// CheckManagement: the readings that a device of this kind has are there.
	CheckManagement = "management"
	// CheckMemoryErrors: the device has no uncorrected memory errors. Corrected ones are reported and not judged: memory is
	// made to have some.
	CheckMemoryErrors = "memory-errors"
	// CheckMemoryPressure: nobody else holds memory that the ledger counts as free.
	CheckMemoryPressure = "memory-pressure"
	// CheckFrees: the driver took back all that was freed.
	CheckFrees = "frees"
	// CheckLeaks: no memory is held for nobody.
	CheckLeaks = "leaks"
)

// Names of the checks of a model, which stands behind a slash.
const (
	// CheckStepProgress: its steps end within their bound.
	CheckStepProgress = "step-progress"
	// CheckModel: it is in service.
	CheckModel = "model"
	// CheckResidency: its resident bytes are checked about as often as was asked for.
	CheckResidency = "residency"
)

// Names of the checks of a codebook, which stands behind a slash.
const (
	// CheckCodebook: it is in service.
	CheckCodebook = "codebook"
	// CheckCodebookResidency is CheckResidency of a codebook.
	CheckCodebookResidency = "codebook-residency"
)

// verdict is a check and the state that a worker has at best by it: Ready, Degraded or NotReady.
type verdict struct {
	Check
	atBest State
}

// passed is a check that holds.
func passed(name string) verdict { return verdict{Check{Name: name, OK: true}, Ready} }

// failed is one that does not; the message is as of fmt.Sprintf.
func failed(name string, atBest State, format string, args ...any) verdict {
	return verdict{Check{Name: name, Message: fmt.Sprintf(format, args...)}, atBest}
}
