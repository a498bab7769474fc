"""What the articles are made of: kinds of report, their facts, and what fills the gaps."""

from __future__ import annotations

from typing import NamedTuple


class Fact(NamedTuple):
    long: tuple[str, ...]  # as it is first stated
    again: tuple[str, ...]  # as it is restated
    short: tuple[str, ...]  # as a highlight


FILLERS: dict[str, tuple[str, ...]] = {
    "city": tuple(
        "Bremen Dresden Leipzig Oxford Bristol Dublin Boston Denver Austin Portland Lyon Turin "
        "Geneva Vienna Prague Oslo Bergen Porto Ghent Utrecht".split()
    ),
    "person": tuple(
        f"{first} {last}"
        for first in "Anna Maria Lena Julia Clara Emma Peter Paul Thomas Max Felix Martin".split()
        for last in "Weber Miller Brown Fischer Wilson Taylor Keller Clark Meyer Walker".split()
    ),
    "official": tuple(
        f"{first} {last}"
        for first in "David Susan Robert Helen George Laura".split()
        for last in "Stone Baker Young Hill Lewis Moore Hughes Bell".split()
    ),
    "day": tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()),
    "month": tuple("January March April May June July October November".split()),
    "hour": tuple("six seven eight nine ten eleven".split()),
    "few": tuple("three four five six seven eight nine twelve fifteen".split()),
    "many": tuple(f"{n}" for n in (20, 30, 40, 60, 80, 90, 120, 150, 200, 250, 300, 400, 600)),
    "money": tuple(f"{n} million" for n in (2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 50)),
    "share": tuple(f"{n} percent" for n in (5, 8, 10, 12, 15, 20, 25, 30, 40, 60)),
    "building": tuple("school;library;museum;hospital;theater;train station".split(";")),
    "firm": tuple("Norda;Helix;Brightwater;Kestrel;Solara;Ironbridge;Tessel;Marwick".split(";")),
    "product": tuple("bicycles;cameras;batteries;solar panels;trains;radios".split(";")),
    "team": tuple("Rovers;Falcons;Lions;Rangers;Comets;Wolves;Hawks;Pirates".split(";")),
    "rival": tuple("Royals;Tigers;Sharks;Eagles;Hornets;Kings".split(";")),
    "animal": tuple("bees;owls;wolves;salmon;bats;storks".split(";")),
    "cause": tuple("a broken lamp;an old heater;a candle;lightning;a faulty cable".split(";")),
}


REPORTS: tuple[tuple[Fact, ...], ...] = (
    (  # a fire
        Fact(
            (
                "a fire destroyed the old {building} in {city} on {day} night.",
                "the {building} in the center of {city} burned down late on {day}.",
            ),
            (
                "by the end of {day}, nothing was left of the {building} that everyone in {city} "
                "knew.",
                "people in {city} lost their {building} to the flames of {day} night.",
            ),
            ("fire destroys {building} in {city}.", "{building} in {city} burns down on {day}."),
        ),
        Fact(
            (
                "{few} people were taken to the hospital with minor injuries.",
                "doctors treated {few} people who had breathed in smoke.",
            ),
            (
                "all {few} of the injured were able to go home the next day.",
                "a nurse said that the {few} people who were hurt were doing well.",
            ),
            ("{few} people were hurt.", "{few} injured in the fire."),
        ),
        Fact(
            (
                "the police believe that {cause} started the fire.",
                "according to the police, the flames were caused by {cause}.",
            ),
            (
                "an expert confirmed that everything began with {cause}.",
                "that {cause} was to blame surprised nobody who worked there.",
            ),
            ("police blame {cause}.", "it was started by {cause}."),
        ),
        Fact(
            (
                "more than {many} firefighters worked until {hour} in the morning.",
                "it took {many} firefighters until {hour} in the morning to put it out.",
            ),
            (
                "the {many} firefighters did not leave before {hour} in the morning.",
                "at {hour} in the morning, the {many} firefighters could finally go home.",
            ),
            ("{many} firefighters fought the flames.", "fire put out at {hour} in the morning."),
        ),
        Fact(
            (
                "mayor {official} promised to rebuild it for {money} dollars.",
                "it will be built again, and mayor {official} expects to pay {money} dollars.",
            ),
            (
                "the {money} dollars that {official} needs will come from the city.",
                "{official} said that a new building was worth the {money} dollars.",
            ),
            ("mayor promises {money} dollars to rebuild.", "rebuilding will cost {money} dollars."),
        ),
    ),
    (  # a new building
        Fact(
            (
                "the city of {city} opened its new {building} on {day} after years of work.",
                "after a long wait, a new {building} opened its doors in {city} on {day}.",
            ),
            (
                "since {day}, {city} has had the {building} that it wanted for so long.",
                "everyone in {city} could visit the new {building} for the first time on {day}.",
            ),
            ("new {building} opens in {city}.", "{city} opens a new {building} on {day}."),
        ),
        Fact(
            (
                "the building cost {money} dollars, which is less than planned.",
                "{city} paid {money} dollars for the work.",
            ),
            (
                "critics said that {money} dollars was far too much.",
                "the price of {money} dollars was the subject of many debates.",
            ),
            ("the building cost {money} dollars.", "it cost {money} dollars."),
        ),
        Fact(
            (
                "the architect {person} designed it with a garden on the roof.",
                "its roof garden was an idea of {person}, the architect.",
            ),
            (
                "{person} said that the garden on the roof was the best part of the design.",
                "visitors thanked {person} for the garden on the roof.",
            ),
            ("architect {person} put a garden on the roof.", "it has a roof garden by {person}."),
        ),
        Fact(
            (
                "about {many} people came to the opening.",
                "a crowd of {many} people celebrated in front of the doors.",
            ),
            (
                "it was a good party, said one of the {many} guests.",
                "the {many} guests had to wait in the rain.",
            ),
            ("{many} people came to the opening.", "{many} guests celebrated."),
        ),
        Fact(
            (
                "the building will be open every day from {hour} in the morning.",
                "from now on, visitors are welcome every morning at {hour}.",
            ),
            (
                "the doors will be open from {hour}, also on Sundays.",
                "those who come before {hour} will find the doors closed.",
            ),
            ("it opens at {hour} every morning.", "doors open daily at {hour}."),
        ),
    ),
    (  # a company
        Fact(
            (
                "the company {firm} will build a factory for {product} in {city}.",
                "{firm} announced on {day} that it would make {product} in {city}.",
            ),
            (
                "soon there will be {product} from {city}, if everything goes as {firm} hopes.",
                "for {city}, the plan of {firm} to make {product} there is good news.",
            ),
            ("{firm} to make {product} in {city}.", "{firm} plans factory in {city}."),
        ),
        Fact(
            (
                "the factory will create {many} jobs in its first year.",
                "{many} people will find work there in the first year.",
            ),
            (
                "those {many} jobs are badly needed in the region.",
                "a union leader called the {many} new jobs a good start.",
            ),
            ("factory will create {many} jobs.", "{many} new jobs are planned."),
        ),
        Fact(
            (
                "{person}, who leads the company, spoke of an investment of {money} dollars.",
                "the company wants to invest {money} dollars, said its head, {person}.",
            ),
            (
                "{person} added that the {money} dollars came from the company's own profits.",
                "the {money} dollars were the largest investment that {person} had ever made.",
            ),
            ("{firm} invests {money} dollars.", "{person} speaks of {money} dollars."),
        ),
        Fact(
            (
                "last year, the sales of {firm} grew by {share}.",
                "{firm} sold {share} more last year than in the year before.",
            ),
            (
                "growth of {share} was more than anyone had expected.",
                "no other company in the country grew by {share}.",
            ),
            ("sales of {firm} grew by {share}.", "{firm} grew by {share} last year."),
        ),
        Fact(
            (
                "work will begin in {month} if the city council agrees.",
                "the first stone will be laid in {month}, unless the city council objects.",
            ),
            (
                "the council wants to decide well before {month}.",
                "{official} of the city council called a start in {month} realistic.",
            ),
            ("work begins in {month}.", "construction could start in {month}."),
        ),
    ),
    (  # a match
        Fact(
            (
                "the {team} beat the {rival} in {city} on {day}.",
                "on {day}, the {rival} lost to the {team} in {city}.",
            ),
            (
                "for the {team}, the victory over the {rival} was the first of the season.",
                "nobody in {city} had expected the {team} to win against the {rival}.",
            ),
            ("{team} beat {rival} in {city}.", "{team} win against {rival} on {day}."),
        ),
        Fact(
            (
                "{person} scored {few} points in the second half.",
                "with {few} points after the break, {person} decided the match.",
            ),
            (
                "the {few} points made {person} the player of the day.",
                "{person} said after the match that the {few} points had been pure luck.",
            ),
            ("{person} scores {few} points.", "{few} points for {person}."),
        ),
        Fact(
            (
                "the coach, {official}, will leave the team in {month}.",
                "in {month}, the team will need a new coach, because {official} is leaving.",
            ),
            (
                "{official} did not want to say what will happen after {month}.",
                "many fans hope that {official} will stay longer than {month}.",
            ),
            ("coach {official} leaves in {month}.", "coach {official} will go in {month}."),
        ),
        Fact(
            (
                "more than {many} fans had traveled to the match by train.",
                "{many} fans had come a long way by train.",
            ),
            (
                "the {many} fans sang until the last train left.",
                "the police had no trouble with the {many} traveling fans.",
            ),
            ("{many} fans came by train.", "{many} fans traveled to the match."),
        ),
        Fact(
            (
                "ticket prices will rise by {share} next season.",
                "next season, fans will have to pay {share} more for a ticket.",
            ),
            (
                "an increase of {share} is hard to explain to families.",
                "the club says that it needs the {share} to pay for a new roof.",
            ),
            ("tickets will cost {share} more.", "ticket prices rise by {share}."),
        ),
    ),
    (  # a study
        Fact(
            (
                "the number of {animal} near {city} has fallen by {share}, a new study says.",
                "researchers in {city} have found that there are {share} fewer {animal} today.",
            ),
            (
                "a loss of {share} is more than the {animal} around {city} can survive for long.",
                "if nothing changes, the {share} will not be the end of it for the {animal} of "
                "{city}.",
            ),
            ("{share} fewer {animal} near {city}.", "study: {animal} near {city} fall by {share}."),
        ),
        Fact(
            (
                "the team of {person} counted the animals for {few} years.",
                "for {few} years, {person} and a small team watched the animals.",
            ),
            (
                "{person} wants to go on after these {few} years.",
                "the {few} years were hard, said {person}, but worth it.",
            ),
            ("{person} counted them for {few} years.", "the study took {few} years."),
        ),
        Fact(
            (
                "most of the {many} volunteers were students.",
                "{many} volunteers, most of them students, helped to collect the data.",
            ),
            (
                "without the {many} volunteers, the work would have been impossible.",
                "all {many} volunteers were invited to a party.",
            ),
            ("{many} volunteers helped.", "{many} volunteers collected the data."),
        ),
        Fact(
            (
                "the minister, {official}, promised {money} dollars for new forests.",
                "new forests for {money} dollars are the answer of the minister, {official}.",
            ),
            (
                "whether the {money} dollars of {official} will be enough is an open question.",
                "{official} hopes that the {money} dollars will help quickly.",
            ),
            (
                "minister promises {money} dollars.",
                "{official} offers {money} dollars for forests.",
            ),
        ),
        Fact(
            (
                "the results will be discussed at a meeting in {month}.",
                "in {month}, experts will meet to discuss the results.",
            ),
            (
                "until the meeting in {month}, nothing will be decided.",
                "the experts will have many questions in {month}.",
            ),
            ("experts meet in {month}.", "results will be discussed in {month}."),
        ),
    ),
)
