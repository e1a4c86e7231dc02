"""What the driver's tests share."""

from tests.driver.driver import built

__all__ = ["built"]
