package webhook

import (
	"context"
	"errors"
	"time"
)

// Bounds of the memory that reviews take. Decoding one takes about twice its
// bytes besides them: 4 of the largest and 64 ordinary ones stay below 90 MB.
const (
	smallBody   = 256 << 10 // pods of people are a tenth of it
	smallAtOnce = 64
	largeAtOnce = 4 // over smallBody, or of a length not said
	// budgetWait is how long a review waits for its turn: with the time of the
	// review itself below timeoutSeconds of the configuration.
	budgetWait = 4 * time.Second
	// bodyTime is what a review's body may take once it is its turn; an API
	// server has it at hand. Whoever dribbles holds a turn no longer.
	bodyTime = 2 * time.Second
)

var errBusy = errors.New("too many reviews at once; try again")

// budget bounds how many reviews are in memory at once. Large ones have turns
// of their own, so that they never keep ordinary pods waiting.
type budget struct{ small, large chan struct{} }

func newBudget() budget {
	return budget{make(chan struct{}, smallAtOnce), make(chan struct{}, largeAtOnce)}
}

// take waits for a turn for a body of that length (-1: not said) and gives
// what ends it.
func (b budget) take(ctx context.Context, length int64) (done func(), err error) {
	turns := b.small
	if length < 0 || length > smallBody {
		turns = b.large
	}
	ctx, cancel := context.WithTimeout(ctx, budgetWait)
	defer cancel()
	select {
	case turns <- struct{}{}:
		return func() { <-turns }, nil
	case <-ctx.Done():
		return nil, errBusy
	}
}
